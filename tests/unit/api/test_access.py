"""What a pod needs to reach the API server, as the kubelet gives it."""

from pathlib import Path

import pytest
from sojourn_api.access import ACCOUNT, Access, NotInPodError, in_cluster


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_is_told_by_its_environment(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert in_cluster() == Access(url, ACCOUNT / "token", ACCOUNT / "ca.crt")


def test_outside_of_a_pod_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NotInPodError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster()


def test_a_token_that_the_kubelet_renews_is_the_one_that_is_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    access = Access("http://h", token)
    for text in ("first", "second"):
        token.write_text(f"{text}\n")
        assert access.headers == {"Authorization": f"Bearer {text}"}
    assert Access("http://h").headers == {}
