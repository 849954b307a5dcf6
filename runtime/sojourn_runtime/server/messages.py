"""What clients say, read into messages and items: chat messages, and the input of responses.

Pure. Only text is understood; images, audio and files are refused by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sojourn_runtime.context.conversation import (
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    FunctionOutput,
    Item,
    Message,
    Role,
    call_arguments,
)
from sojourn_runtime.grammar import grammar_of_calls
from sojourn_runtime.server.errors import Json, invalid, unsupported
from sojourn_runtime.server.fields import Fields

MOST_MESSAGES: Final = 16_384
"""A bound for sanity: the context holds fewer than one message per token."""
MOST_TOOLS: Final = 128

TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
OTHER_PARTS: Final = {
    "image_url": "image input",
    "input_image": "image input",
    "input_audio": "audio input",
    "file": "file input",
    "input_file": "file input",
}


def read_chat_messages(fields: Fields) -> list[ChatMessage]:
    """The `messages` of a chat completion."""
    messages = [_chat_message(entry) for entry in fields.objects("messages", most=MOST_MESSAGES)]
    if not messages:
        raise invalid("'messages' must hold at least one message.", param="messages")
    return messages


def _chat_message(fields: Fields) -> ChatMessage:
    roles = ("system", "developer", "user", "assistant", "tool", "function")
    fields.required("role")
    role = fields.choice("role", roles, default="user")
    if role == "function":
        raise unsupported("function messages; use 'tool'", param=fields.path("role"))
    message = ChatMessage(role="system" if role == "developer" else role)
    calls = list(_tool_calls(fields)) if role == "assistant" else []
    if calls:
        message["tool_calls"] = calls
    if role == "assistant" and not fields.has("content"):
        fields.ignore(("content",))
        if not calls and not fields.has("refusal"):
            fields.required("content")
        message["content"] = fields.text_or_none("refusal") or ""
    else:
        message["content"] = "".join(_texts(fields, "content"))
    if role == "tool":
        message["tool_call_id"] = fields.text("tool_call_id")
    name = fields.text_or_none("name", longest=64)
    if name is not None:
        message["name"] = name
    fields.ignore(("refusal", "annotations", "audio", "reasoning_content"))
    fields.refuse_unknown()
    return message


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    """A string, or the texts of an array of parts."""
    value = fields.required(name)
    if isinstance(value, str):
        return (fields.text(name),)
    if not isinstance(value, list):
        fields.wrong(name, "a string or an array of parts", value)
    return tuple(_part(part) for part in fields.objects(name, most=MOST_MESSAGES))


def _part(part: Fields) -> str:
    kind = part.text("type")
    if kind in OTHER_PARTS:
        raise unsupported(OTHER_PARTS[kind], param=part.path("type"))
    if kind == "refusal":
        return part.text("refusal")
    if kind not in TEXT_PARTS:
        param = part.path("type")
        raise invalid(f"'{param}' is '{kind}', which is no kind of content.", param=param)
    return part.text("text")


def _tool_calls(fields: Fields) -> Iterator[ChatToolCall]:
    if not fields.has("tool_calls"):
        fields.ignore(("tool_calls",))
        return
    for call in fields.objects("tool_calls", most=MOST_TOOLS):
        _only_functions(call)
        function = call.object_or_none("function")
        if function is None:
            call.required("function")
            continue
        yield {
            "id": call.text("id"),
            "type": "function",
            "function": {
                "name": function.text("name"),
                "arguments": call_arguments(function.text("arguments")),
            },
        }


def _only_functions(fields: Fields) -> None:
    kind = fields.text("type")
    if kind != "function":
        raise unsupported(f"'{kind}' tools", param=fields.path("type"))


@dataclass(frozen=True, slots=True)
class Tools:
    """What the model may call: as its template reads it, and the grammar if it must call."""

    shown: Sequence[Mapping[str, Json]] = ()
    grammar: str = ""


def read_tools(fields: Fields, *, nested: bool) -> Tools:
    """The tools and how they are chosen; `nested` as chat completions spell them."""
    tools: list[dict[str, Json]] = []
    schemas: dict[str, Mapping[str, Json]] = {}
    fields.ignore(("tools",))
    for tool in fields.objects("tools", most=MOST_TOOLS) if fields.has("tools") else ():
        _only_functions(tool)
        function = tool.object("function") if nested else tool
        tools.append(_tool(function))
        given = function.has("parameters")
        schemas[function.text("name")] = (
            function.mapping("parameters") if given else {"type": "object"}
        )
    choice = _tool_choice(fields, nested=nested)
    one = not fields.flag("parallel_tool_calls", default=True)
    if choice == "none":
        return Tools()
    if choice == "auto":
        return Tools(tools)
    if choice != "required":
        if choice not in schemas:
            message = f"'tool_choice' names '{choice}', which is not among 'tools'."
            raise invalid(message, param="tool_choice")
        schemas, one = {choice: schemas[choice]}, True
    if not schemas:
        raise invalid("'tool_choice' asks for a call, but there are no tools.", param="tool_choice")
    return Tools(tools, grammar_of_calls(schemas, one=one))


def _tool_choice(fields: Fields, *, nested: bool) -> str:
    """`auto`, `none`, `required` or the name of a function."""
    value = fields.raw("tool_choice")
    if not isinstance(value, dict):
        return fields.choice("tool_choice", ("auto", "none", "required"), default="auto")
    choice = fields.object("tool_choice")
    _only_functions(choice)
    return (choice.object("function") if nested else choice).text("name")


def _tool(function: Fields) -> dict[str, Json]:
    name = function.text("name", longest=64)
    if not name or not all(char.isalnum() or char in "_-" for char in name):
        param = function.path("name")
        raise invalid(f"'{param}' may hold letters, digits, '_' and '-' only.", param=param)
    value: dict[str, Json] = {"name": name}
    description = function.text_or_none("description")
    if description is not None:
        value["description"] = description
    if function.object_or_none("parameters") is not None:
        value["parameters"] = function.raw("parameters")
    return {"type": "function", "function": value}


def read_input(fields: Fields, name: str, *, new_id: Callable[[str], str]) -> tuple[Item, ...]:
    """The `input` of a response: a string, or items."""
    value = fields.required(name)
    if isinstance(value, str):
        text = fields.text(name)
        return (Message(id=new_id("msg"), role=Role.USER, texts=(text,)),)
    if not isinstance(value, list):
        fields.wrong(name, "a string or an array of items", value)
    items = read_items(fields, name, new_id=new_id, most=MOST_MESSAGES)
    if not items:
        raise invalid(f"'{fields.path(name)}' must hold at least one item.", param=name)
    return items


def read_items(
    fields: Fields, name: str, *, new_id: Callable[[str], str], most: int
) -> tuple[Item, ...]:
    """An array of items; each gets an id of ours, since it may be sent several times."""
    return tuple(_item(entry, new_id=new_id) for entry in fields.objects(name, most=most))


def _item(fields: Fields, *, new_id: Callable[[str], str]) -> Item:
    kind = fields.text_or_none("type") or "message"
    fields.ignore(("id", "status", "phase"))
    if kind == "message":
        roles = tuple(Role)
        fields.required("role")
        role = fields.choice("role", roles, default=Role.USER)
        item: Item = Message(id=new_id("msg"), role=role, texts=_texts(fields, "content"))
    elif kind == "function_call":
        item = FunctionCall(
            id=new_id("fc"),
            call_id=fields.text("call_id"),
            name=fields.text("name"),
            arguments=fields.text("arguments"),
        )
    elif kind == "function_call_output":
        output = "".join(_texts(fields, "output"))
        item = FunctionOutput(id=new_id("fco"), call_id=fields.text("call_id"), output=output)
    else:
        raise unsupported(f"'{kind}' items", param=fields.path("type"))
    fields.refuse_unknown()
    return item
