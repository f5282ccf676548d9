"""The version table: names of wheels, patch levels, and error messages."""

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
        *(
            ((value, "3.12", "2.8", "6.4"), f"flash-attn is '{value}'; it must be a version of")
            for value in ("3.0.0", "2.8", "2.8.x", "2.8.3+rocm64", "2.7.4-post1", "latest")
        ),
        (("2.8.3", "3.8", "2.8", "6.4"), "Python is 3.8; the packages need 3.9 or newer"),
        (("2.8.3", "three", "2.8", "6.4"), "Python is 'three'; it must be a version such as 3.12"),
        (("2.8.3", "3.12", "2.1", "6.4"), "torch is 2.1; the packages need 2.2 or newer"),
        (("2.8.3", "3.12", "2.8", "six"), "ROCm is 'six'; it must be a version such as 6.4"),
    ],
)
def test_invalid_versions(given: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(versions.InvalidVersion) as caught:
        versions.check(*given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (("2.8.3", "3.12", "2.5.1", "6.2"), None),
        (("2.8.3", "3.12", "2.9.1", "7.1.1"), None),  # AMD's images
        (("2.8.3", "3.10", "2.9.1", "7.2"), None),
        *(
            (
                (value, "3.12", "2.8", "6.4"),
                f"flash-attn {value} is not known; known versions: 2.6.3,",
            )
            for value in ("2.7.4.post1", "2.8.1", "2.8.0.post2", "2.5.9")
        ),
        (
            ("2.8.3", "3.12", "2.8", "7.0"),
            "torch 2.8 is known with ROCm 6.3 and 6.4, not 7.0; building it anyway",
        ),
        (
            ("2.8.3", "3.14", "2.8", "6.4"),
            "torch 2.8 for ROCm 6.4 is known with Python 3.10 to 3.13",
        ),
        (("2.8.3", "3.12", "2.3", "6.4"), "torch 2.3 is not known; known versions: 2.5, 2.6"),
        (("2.8.3", "3.12", "2.8", "5.7"), "torch 2.8 is known with ROCm 6.3 and 6.4, not 5.7"),
    ],
)
def test_unknown_combinations_have_a_warning(
    given: tuple[str, str, str, str], warning: str | None
) -> None:
    made = versions.check(*given)
    assert len(made.warnings) == (warning is not None)
    assert warning is None or made.warnings[0].startswith(warning)
    assert made.file_name.endswith("-linux_x86_64.whl")


def test_wheel_versions_are_normalized() -> None:
    """Installers normalize versions; another form would no longer match the file name."""
    from packaging.version import Version

    for torch, (rocms, (first, _)) in versions.TORCH.items():
        for rocm in rocms:
            for triton, flash_attn in ((False, "2.8.3"), (True, "2.7.4.post1")):
                made = versions.check(flash_attn, first, torch, rocm, triton).version
                assert str(Version(made)) == made
