"""The flags, through SGLang's own argument path: what is read, what is refused, and with which words."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import sglang
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs, prepare_server_args

from eval.live.running_server import ServerError
from eval.live.server import LAUNCH_COMMAND, Server, cpu_flags
from radix_tlru import Config, ConfigError
from radix_tlru.learning.state_file import Origin, read_state
from radix_tlru.sglang.carrier import BACKEND, config_of
from radix_tlru.sglang.plugin import server_args
from radix_tlru.sglang.releases import (
    check_version,
    host_tier_refusal,
    rust_core_refusal,
    sessions_refusal,
)
from radix_tlru.tools.demo_model import write_demo_model
from tests.helpers.runs import Run
from tests.helpers.servers import POOL


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model") / "demo"
    write_demo_model(directory)
    return str(directory)


@pytest.fixture(autouse=True)
def plugins_and_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", "torch_cpu")
    load_plugins()


def parse(model: str, *flags: str) -> ServerArgs:
    return prepare_server_args(["--model-path", model, *flags])


def test_without_the_flag_the_record_is_stock(model: str) -> None:
    record = parse(model)
    assert record.radix_cache_backend is None
    assert config_of(record) is None


def test_the_flags_become_a_configuration_that_travels_to_the_schedulers(model: str) -> None:
    flags = "--radix-eviction tlru --tlru-threshold 4096 --tlru-next-prompt-estimate 64 --tlru-median-weight 0.2"
    record = pickle.loads(pickle.dumps(parse(model, *flags.split())))
    assert record.radix_cache_backend == BACKEND
    assert config_of(record) == Config("tlru", threshold=4096, next_prompt_estimate=64, median_weight=0.2)


def test_sglangs_own_policy_stays_lru_whatever_it_would_choose_for_the_model(model: str) -> None:
    """For Qwen3-VL it would choose another one, and then not look up again what waits, unless lru was asked for."""
    record, stock = parse(model, "--radix-eviction", "tlru"), parse(model)
    assert (record.radix_eviction_policy, record._radix_eviction_policy_explicitly_set) == ("lru", True)
    assert not stock._radix_eviction_policy_explicitly_set


def test_one_flag_is_enough(model: str) -> None:
    assert config_of(parse(model, "--radix-eviction", "tlru")) == Config()


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        ("--tlru-ttft-slo 100", Config(ttft_slo_ms=100)),
        ("--tlru-ttft-slo 99.5", Config(ttft_slo_ms=99.5)),
    ],
)
def test_the_threshold_is_learned_if_it_is_not_pinned(model: str, flags: str, config: Config) -> None:
    record = pickle.loads(pickle.dumps(parse(model, "--radix-eviction", "tlru", *flags.split())))
    assert config_of(record) == config
    assert not config.is_pinned


def test_a_yaml_file_says_the_same(model: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("radix-eviction: tlru\ntlru-threshold: 4096\ntlru-median-weight: 0.5\n")
    assert config_of(parse(model, "--config", str(file))) == Config(threshold=4096, median_weight=0.5)
    file.write_text("radix-eviction: tlru\ntlru-ttft-slo: 150\n")
    assert config_of(parse(model, "--config", str(file))) == Config(ttft_slo_ms=150)
    file.write_text("radix-eviction: etlru\ntlru-ttft-slo: 99.9\n")
    assert config_of(parse(model, "--config", str(file))) == Config("etlru", ttft_slo_ms=99.9)


def test_a_name_of_a_file_that_looks_like_a_number_is_a_name_and_null_is_none(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("radix-eviction: etlru\ntlru-state: 1.5\n")
    assert config_of(parse(model, "--config", str(file))) == Config("etlru", state="1.5")
    not_found, no_name = "No such file or directory", "must be the name of a file, or left out"
    for flag, value, said in (("warm", "7", f"7: {not_found}"), ("state", "null", f"None: {no_name}")):
        file.write_text(f"radix-eviction: etlru\ntlru-{flag}: {value}\n")
        with pytest.raises(SystemExit):
            parse(model, "--config", str(file))
        assert capsys.readouterr().err.endswith(f"sglang: error: --tlru-{flag} {said}\n")


def test_a_switch_is_turned_on_by_a_yaml_file_and_by_a_keyword(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("radix-eviction: tlru\ntlru-dry-run: true\nenable-metrics: true\n")
    keywords = {"model_path": model, "radix_eviction": "tlru", "tlru_dry_run": True, "enable_metrics": True}
    if refusal := rust_core_refusal():  # it is on, as this release is refused for it
        with pytest.raises(SystemExit):
            parse(model, "--config", str(file))
        named = f"--tlru-dry-run: not supported with SGLang {sglang.__version__}: {refusal}"
        assert named in capsys.readouterr().err
        with pytest.raises(ConfigError, match=re.escape(named)):
            Engine.server_args_class(**keywords)
        return
    assert config_of(parse(model, "--config", str(file))) == Config(dry_run=True)
    assert config_of(Engine.server_args_class(**keywords)) == Config(dry_run=True)


def test_the_engine_takes_the_flags_as_keywords(model: str) -> None:
    record = Engine.server_args_class(model_path=model, radix_eviction="tlru", tlru_threshold=4096)
    assert config_of(record) == Config(threshold=4096)
    assert record == server_args(Config(threshold=4096), model_path=model)
    slo = Engine.server_args_class(model_path=model, radix_eviction="tlru", tlru_ttft_slo=100)
    assert config_of(slo) == Config(ttft_slo_ms=100)
    assert config_of(Engine.server_args_class(model_path=model, tlru_dry_run=False)) is None
    assert config_of(Engine.server_args_class(model_path=model)) is None
    for wrong in ({"tlru_threshold": -1}, {"radix_eviction_policy": "lru"}, {"disable_radix_cache": True}):
        with pytest.raises(ConfigError):
            Engine.server_args_class(model_path=model, radix_eviction="tlru", **wrong)
    with pytest.raises(ConfigError, match=r"^--radix-cache-backend radix_tlru: is selected by --radix-eviction etlru"):
        Engine.server_args_class(model_path=model, radix_cache_backend=BACKEND)
    with pytest.raises(ConfigError, match=r"^--tlru-warm FILE: must be left out of an Engine"):
        Engine.server_args_class(model_path=model, radix_eviction="tlru", tlru_warm="FILE")
    for switch in ("tlru_prefill_ahead", "tlru_explain"):
        with pytest.raises(
            ConfigError, match=r"^--tlru-\w+(-ahead)?: must be left out of an Engine, which has no HTTP"
        ):
            Engine.server_args_class(model_path=model, radix_eviction="tlru", **{switch: True})


def test_a_return_model_that_breaks_its_contract_ends_the_launch(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("--radix-eviction", "etlru", "--tlru-return-model")
    assert config_of(parse(model, *own, "eval.examples.tool_calls:AfterToolCalls")) is not None
    with pytest.raises(SystemExit) as ended:
        parse(model, *own, "tests.helpers.wrong_models:EndsAtOnce")
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]  # SGLang may have said something of the machine before
    assert "sglang: error: --tlru-return-model tests.helpers.wrong_models:EndsAtOnce: EndsAtOnce.group(" in line
    assert line.endswith(
        "returned Group(0, expiry=1.0): must be a Group of a whole number and an expiry later than now, 1"
    )


def with_state(model: str, file: Path, *flags: str) -> ServerArgs:
    """A record as it is when SGLang checks it: resolved."""
    record = parse(model, "--radix-eviction", "etlru", "--tlru-state", str(file), "--device", "cpu", *flags)
    record.resolve_once()
    return record


def test_a_state_of_another_server_ends_the_launch_before_the_model_is_loaded(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "state.npz"
    record = with_state(model, file)
    assert config_of(record) == Config("etlru", state=str(file))
    record.check_server_args()
    assert read_state(file).origin == Origin(model, 1), "a missing file is created"
    record.check_server_args()
    with pytest.raises(SystemExit) as ended:
        with_state(model, file, "--page-size", "32").check_server_args()
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"sglang: error: --tlru-state {file}: was learned with the page size 1; must be of 32, or a new file"


def test_a_state_that_cannot_be_written_ends_the_launch(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nowhere" / "state.npz"
    with pytest.raises(SystemExit) as ended:
        with_state(model, file).check_server_args()
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    reason = "FileNotFoundError: No such file or directory"
    assert line == f"sglang: error: --tlru-state {file}: cannot be written, {reason}"


@pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))
def test_a_hierarchical_cache_has_a_threshold_of_the_host(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    hierarchical = ("--radix-eviction", "tlru", "--enable-hierarchical-cache", "--hicache-storage-backend", "file")
    assert config_of(parse(model, *hierarchical)) == Config()
    own = (*hierarchical, "--tlru-host-threshold", "300")
    assert config_of(parse(model, *own)) == Config(host_threshold=300)
    with pytest.raises(SystemExit):
        parse(model, *own, "--hicache-host-memory-mode", "buffer_only")
    assert "--tlru-host-threshold 300: needs --hicache-host-memory-mode cache" in capsys.readouterr().err


def test_streaming_sessions_are_refused_where_they_would_unlock_past_us(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    streaming = ("--radix-eviction", "tlru", "--enable-streaming-session")
    if (refusal := sessions_refusal()) is None:
        assert config_of(parse(model, *streaming)) == Config()
        return
    with pytest.raises(SystemExit):
        parse(model, *streaming)
    assert f"not supported together with --enable-streaming-session: {refusal}" in capsys.readouterr().err


PDMUX = ("--enable-pdmux", "--disable-overlap-schedule", "--chunked-prefill-size", "-1")


def test_prefills_that_decode_runs_beside_need_a_pinned_threshold(model: str) -> None:
    parsed = parse(model, "--radix-eviction", "etlru", "--tlru-threshold", "4096", *PDMUX)
    assert config_of(parsed) == Config("etlru", threshold=4096)


REFUSED = {
    "--radix-eviction tlru --tlru-threshold -1": "--tlru-threshold -1: must be a whole number of tokens, 0 or more",
    "--radix-eviction tlru --tlru-threshold=abc": "--tlru-threshold abc: must be a whole number of tokens, 0 or more",
    "--radix-eviction tlru --tlru-threshold 2048.5": "--tlru-threshold 2048.5: must be a whole number of tokens",
    "--radix-eviction tlru --tlru-threshold 200": "must be more than 200, the tokens that a next prompt is expected to",
    "--radix-eviction tlru --tlru-threshold 2048 --tlru-next-prompt-estimate 9000": "--tlru-threshold 2048: must be",
    "--radix-eviction tlru --tlru-ttft-slo 0": "--tlru-ttft-slo 0: must be a number of milliseconds above 0",
    "--radix-eviction tlru --tlru-ttft-slo=fast": "--tlru-ttft-slo fast: must be a number of milliseconds above 0",
    "--radix-eviction tlru --tlru-target p95": "--tlru-target p95: was removed; state an objective in ms with --tlru-t",
    "--radix-eviction etlru --tlru-median-weight auto": "auto: must be a number from 0 to 1; auto was removed",
    "--radix-eviction tlru --tlru-median-weight load": "load: must be a number from 0 to 1; load was removed",
    "--radix-eviction tlru --tlru-threshold 4096 --tlru-ttft-slo 100": "not together with --tlru-ttft-slo 100; give",
    "--tlru-ttft-slo 100": "--tlru-ttft-slo 100: needs --radix-eviction etlru (or tlru)",
    "--radix-eviction tlru --tlru-next-prompt-estimate none": "--tlru-next-prompt-estimate none: must be a whole",
    "--radix-eviction tlru --tlru-median-weight 1.5": "--tlru-median-weight 1.5: must be a number from 0 to 1",
    "--radix-eviction tlru --tlru-median-weight nan": "--tlru-median-weight nan: must be a number from 0 to 1",
    "--radix-eviction lfu": "argument --radix-eviction: invalid choice: 'lfu' (choose from 'tlru', 'etlru')",
    "--tlru-state file": "error: --tlru-state file: needs --radix-eviction etlru",
    "--radix-eviction tlru --tlru-state file": "file: must be left out without --radix-eviction etlru",
    "--tlru-return-model a:b": "error: --tlru-return-model a:b: needs --radix-eviction etlru",
    "--tlru-threshold 4096": "--tlru-threshold 4096: needs --radix-eviction etlru (or tlru)",
    "--tlru-explain": "error: --tlru-explain: needs --radix-eviction etlru (or tlru)",
    "--radix-eviction tlru --tlru-explain --tokenizer-worker-num 2": "not supported together with --tokenizer-worker-n",
    "--tlru-dry-run": "error: --tlru-dry-run: needs --radix-eviction etlru (or tlru)",
    "--radix-eviction etlru --tlru-dry-run": "error: --tlru-dry-run: needs --enable-metrics, where what would be saved",
    "--radix-eviction tlru --tlru-dry-run --tlru-host-threshold 300": "300: not together with --tlru-dry-run: stock",
    "--radix-eviction tlru --radix-eviction-policy lru": "together with --radix-eviction-policy lru",
    "--radix-eviction tlru --radix-eviction-policy=tlru": "together with --radix-eviction-policy tlru",
    "--radix-eviction tlru --radix-cache-backend mine": "together with --radix-cache-backend mine",
    "--radix-cache-backend radix_tlru": "--radix-cache-backend radix_tlru: is selected by --radix-eviction etlru, n",
    "--radix-eviction tlru --disable-radix-cache": "together with --disable-radix-cache",
    "--radix-eviction tlru --enable-hisparse --disable-radix-cache": "together with --enable-hisparse",
    "--radix-eviction tlru --tlru-host-threshold 300": "--tlru-host-threshold 300: needs --enable-hierarchical-cache",
    "--radix-eviction tlru --disaggregation-mode prefill --enable-pd-role-switch": "with --enable-pd-role-switch",
    "--radix-eviction tlru --disaggregation-mode decode": "together with --disaggregation-mode decode",
    "--radix-eviction tlru --disaggregation-mode decode --disaggregation-decode-enable-radix-cache": "-mode decode",
    "--radix-eviction tlru --enable-lmcache": "together with --enable-lmcache",
    "--radix-eviction tlru --smg-grpc-mode": "together with --smg-grpc-mode",
    "--radix-eviction tlru --grpc-mode": "grpc-mode",
    "--radix-eviction tlru --disaggregation-mode prefill --enable-hierarchical-cache --pp-size 2": "--pp-size 2",
    f"--radix-eviction etlru {' '.join(PDMUX)}": "--enable-pdmux, whose prefills cannot be timed, unless --tlru-thre",
    "--radix-eviction etlru --dllm-algorithm LowConfidence": "LowConfidence, whose answers look like prefills, unless",
    "--radix-eviction tlru --tlru-priority 9 --abort-on-priority-when-disabled": "--tlru-priority 9: not supported",
    "--radix-eviction tlru --tlru-warm nowhere": "--tlru-warm nowhere: No such file or directory",
    "--radix-eviction tlru --tlru-warm 2026": "--tlru-warm 2026: No such file or directory",
    "--radix-eviction tlru --tlru-warm nan": "--tlru-warm nan: No such file or directory",
    "--radix-eviction tlru --tlru-warm . --tokenizer-worker-num 2": "together with --tokenizer-worker-num 2",
    "--radix-eviction tlru --tlru-warm . --disaggregation-mode prefill": "together with --disaggregation-mode prefill",
    "--tlru-prefill-ahead": "error: --tlru-prefill-ahead: needs --radix-eviction etlru (or tlru)",
    "--radix-eviction tlru --tlru-prefill-ahead --dp-size 2": "-ahead: not supported together with --dp-size 2",
    "--radix-eviction tlru --tlru-prefill-ahead --tokenizer-worker-num 2": "-ahead: not supported together with --t",
    "--radix-eviction tlru --tlru-prefill-ahead --disaggregation-mode prefill": "-ahead: not supported together with",
    "--radix-eviction tlru --tlru-prefill-ahead --tp 2 --attn-dp-size 2": "--attn-dp-size 2",
    "--radix-eviction tlru --tlru-prefill-ahead --enable-memory-saver": "not supported together with --enable-memory-",
    "--radix-eviction tlru --tlru-warm . --enable-memory-saver": ".: not supported together with --enable-memory-saver",
    "--radix-eviction tlru --use-ray": "together with --use-ray",
    "--radix-eviction tlru --encoder-only": "together with --encoder-only",
    "--radix-eviction tlru --kv-canary-sweep-interval 100": "together with --kv-canary-sweep-interval 100",
    "--radix-eviction tlru --enable-int8-mamba-checkpoint": "together with --enable-int8-mamba-checkpoint",
    '--radix-eviction tlru --enable-metrics --extra-metric-labels {"policy":"a"}': "-labels policy: must be another",
}


@pytest.mark.parametrize(("flags", "message"), REFUSED.items(), ids=REFUSED)
def test_a_wrong_flag_ends_with_status_2_and_one_line(
    model: str, flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(model, *flags.split())
    assert stopped.value.code == 2
    last_line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error: " in last_line
    assert message in last_line


def test_a_server_that_takes_requests_in_elsewhere_is_refused(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(SystemExit):
        parse(model, "--radix-eviction", "tlru")
    assert "not supported together with SGLANG_RUST_SERVER" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.5.9", "0.5.20", "0.5.24", "0.6.0", "(not installed)"])
def test_an_sglang_outside_the_supported_range_is_refused(version: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--radix-eviction: SGLang .* is installed, supported is 0\.5\.21 to 0\.5\.23$"
    ):
        check_version(version)


def test_the_installed_sglang_is_in_the_supported_range() -> None:
    check_version(sglang.__version__)
    check_version("0.5.23.post1+cu130")


def test_the_launcher_itself_ends_before_the_model_is_loaded(model: str, tmp_path: Path) -> None:
    wrong = ("--radix-eviction", "tlru", "--tlru-threshold", "100")
    status, printed = Run(tmp_path, *LAUNCH_COMMAND[1:], "--model-path", model, *wrong).wait()
    assert status == 2
    assert "sglang: error: --tlru-threshold 100: must be more than" in printed
    assert "Traceback" not in printed
    assert "Load weight" not in printed


def test_a_server_without_the_plugin_does_not_come_up_with_stock_eviction(model: str) -> None:
    flags = [*cpu_flags(Path(model), POOL), "--radix-eviction", "tlru"]
    server = Server(flags, name="test-no-plugin", environment={"SGLANG_PLUGINS": "another_plugin"}, grace_s=0)
    with pytest.raises(ServerError, match=r"ended with status 2 (.|\n)*--radix-eviction"), server:
        pass
