"""The table of versions: names of wheels, patch levels, and messages that have the right ones."""

from __future__ import annotations

import pytest
import versions


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (
            ("2.8.3", "3.12", "2.8", "6.4"),
            "flash_attn-2.8.3+rocm64torch2.8-cp312-cp312-linux_x86_64.whl",
        ),
        (
            ("v2.6.3", "3.10", "2.5.1", "6.2.4"),
            "flash_attn-2.6.3+rocm62torch2.5-cp310-cp310-linux_x86_64.whl",
        ),
        (
            ("2.7.4", "3.14", "2.14.0", "7.14"),
            "flash_attn-2.7.4+rocm714torch2.14-cp314-cp314-linux_x86_64.whl",
        ),
    ],
)
def test_names(given: tuple[str, str, str, str], name: str) -> None:
    assert versions.check(*given).file_name == name


def test_triton_is_in_the_name() -> None:
    made = versions.check("2.8.3", "3.12", "2.8", "6.4", triton=True)
    assert made.file_name == "flash_attn-2.8.3+rocm64torch2.8triton-cp312-cp312-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("2.8.4", "3.12", "2.8", "6.4"), "flash-attn: 2.8.4; there are 2.6.3, 2.7.4, 2.8.3"),
        (("2.8.3", "3.8", "2.8", "6.4"), "Python: 3.8; the packages need 3.9 or newer"),
        (("2.8.3", "three", "2.8", "6.4"), "Python: 'three' is not a version such as 3.12"),
        (("2.8.3", "3.12", "2.1", "6.4"), "torch: 2.1; the packages need 2.2 or newer"),
        (("2.8.3", "3.12", "2.8", "six"), "ROCm: 'six' is not a version such as 6.4"),
    ],
)
def test_wrong_versions(given: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(versions.WrongVersion) as caught:
        versions.check(*given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (("2.8.3", "3.12", "2.5.1", "6.2"), None),
        (("2.8.3", "3.12", "2.9.1", "7.1.1"), None),  # AMD's images
        (("2.8.3", "3.10", "2.9.1", "7.2"), None),
        (
            ("2.8.3", "3.12", "2.8", "7.0"),
            "torch 2.8 is known with ROCm 6.3 and 6.4, not 7.0; built",
        ),
        (
            ("2.8.3", "3.14", "2.8", "6.4"),
            "torch 2.8 for ROCm 6.4 is known with Python 3.10 to 3.13",
        ),
        (("2.8.3", "3.12", "2.3", "6.4"), "torch 2.3 is not known; known are 2.5, 2.6"),
        (("2.8.3", "3.12", "2.8", "5.7"), "torch 2.8 is known with ROCm 6.3 and 6.4, not 5.7"),
    ],
)
def test_unknown_ones_are_built_with_a_warning(
    given: tuple[str, str, str, str], warning: str | None
) -> None:
    made = versions.check(*given)
    assert len(made.warnings) == (warning is not None)
    assert warning is None or made.warnings[0].startswith(warning)
    assert made.file_name.endswith("-linux_x86_64.whl")


def test_wheel_versions_are_valid_and_normal() -> None:
    """Installers rewrite versions that are not in normal form, and the file's name would no longer match."""
    from packaging.version import Version

    for torch, (rocms, (first, _)) in versions.TORCH.items():
        for rocm in rocms:
            for triton in (False, True):
                made = versions.check("2.8.3", first, torch, rocm, triton).version
                assert str(Version(made)) == made
