"""Which mappings are given back, and that all of them still work."""

import ssl

from sojourn_deviceplugin import slim

MAPS = """\
55d0c0000000-55d0c0002000 r--p 00000000 08:01 1234 /usr/bin/python3.11
55d0c0002000-55d0c0005000 r-xp 00002000 08:01 1234 /usr/bin/python3.11
55d0c0005000-55d0c0006000 rw-p 00005000 08:01 1234 /usr/bin/python3.11
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]
7f1000000000-7f1000001000 r-xp 00000000 08:01 77 /tmp/a name (deleted)
"""


def test_only_code_of_files_is_given_back() -> None:
    found = list(slim.code(MAPS.splitlines()))
    assert found == [(0x55D0C0002000, 0x3000), (0x7F1000000000, 0x1000)]


def resident_file_kib() -> int:
    with open("/proc/self/status") as status:  # noqa: PTH123
        return next(int(line.split()[1]) for line in status if line.startswith("RssFile"))


def test_resident_code_shrinks_and_runs_on() -> None:
    ssl.create_default_context()  # touches more of OpenSSL than the tests use otherwise
    before = resident_file_kib()
    slim.slim()
    after = resident_file_kib()
    assert after < before
    assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED
