"""What stands in deploy/ fits what the code does: images, manifests and units are checked against real daemons."""

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from pillarbox.cli.app import app
from pillarbox.settings import Settings
from pillarbox.settings.durations import parse_duration
from pillarbox.settings.kinds import known_keys
from pillarbox.stores.sqlite.schema import Tables
from servers.process import free_port

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
CONTAINERFILE = (ROOT / "deploy" / "container" / "Containerfile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLAGS = {"PILLARBOX_JSON", "PILLARBOX_DEBUG", "PILLARBOX_CONSUME_TOPIC"}
DOCUMENTS = {
    f"{file.stem} {document['kind']}": document
    for file in sorted(KUBERNETES.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
}
DEPLOYMENTS = {name: one for name, one in DOCUMENTS.items() if one["kind"] == "Deployment"}
WORKLOADS = {name: one for name, one in DOCUMENTS.items() if one["kind"] in ("Deployment", "Job")}
ENVIRONMENT = DOCUMENTS["settings ConfigMap"]["data"] | DOCUMENTS["settings Secret"]["stringData"]


def pod(document: dict[str, Any]) -> Any:
    return document["spec"]["template"]["spec"]


def container(document: dict[str, Any]) -> Any:
    (one,) = pod(document)["containers"]
    return one


@contextmanager
def relay(directory: Path, environment: dict[str, str]) -> Iterator[int]:
    """Run a relay on a SQLite file with an environment but for the port, until it serves; give its port."""
    port = free_port()
    connection = sqlite3.connect(directory / "shop.db", isolation_level=None)
    Tables(str(directory / "shop.db"), "pillarbox_").up(connection)
    connection.close()
    ends = {"PILLARBOX_DATABASE": "sqlite:///shop.db", "PILLARBOX_BROKER": "sqlite:///stream.db"}
    place, _, _ = environment["PILLARBOX_HEALTH_LISTEN"].rpartition(":")
    process = subprocess.Popen(
        [sys.executable, "-m", "pillarbox", *container(DOCUMENTS["relay Deployment"])["args"]],
        cwd=directory,
        env={**os.environ, **environment, **ends, "PILLARBOX_HEALTH_LISTEN": f"{place}:{port}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["moment"] == "lanes taken":
                break
        yield port
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_kubernetes_finds_nothing_wrong_with_a_manifest(name: str) -> None:
    kubernetes_validate.validate(DOCUMENTS[name], kubernetes_validate.latest_version(), strict=True)


def test_the_probes_ask_for_what_a_relay_with_these_settings_serves(tmp_path: Path) -> None:
    probed = container(DOCUMENTS["relay Deployment"])
    ports = {port["name"]: port["containerPort"] for port in probed["ports"]}
    paths = {}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        asks = probed[probe]["httpGet"]
        assert str(ports[asks["port"]]) == ENVIRONMENT["PILLARBOX_HEALTH_LISTEN"].rpartition(":")[2]
        paths[probe] = asks["path"]
    said = {}
    with relay(tmp_path, DOCUMENTS["settings ConfigMap"]["data"]) as port:
        for probe, path in paths.items():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                said[probe] = json.load(answer)["status"]
        check = re.search(r'CMD \["python", "-c", "(.*)"\]', CONTAINERFILE)
        assert check is not None
        subprocess.run([sys.executable, "-c", check[1].replace("9464", str(port))], check=True)
    assert said == {"livenessProbe": "live", "readinessProbe": "ready", "startupProbe": "started"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_deployment_has_the_same_probes_two_replicas_and_a_budget(name: str) -> None:
    document = DEPLOYMENTS[name]
    probes = ("livenessProbe", "readinessProbe", "startupProbe", "ports", "envFrom")
    assert [container(document)[key] for key in probes] == [
        container(DOCUMENTS["relay Deployment"])[key] for key in probes
    ]
    assert document["spec"]["replicas"] == 2
    budget = DOCUMENTS[name.replace("Deployment", "PodDisruptionBudget")]
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
    drain = parse_duration(ENVIRONMENT["PILLARBOX_RELAY_PUBLISH_TIMEOUT"])
    assert pod(document)["terminationGracePeriodSeconds"] > drain.total_seconds()


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_workload_may_do_more_than_it_must(name: str) -> None:
    inside = container(WORKLOADS[name])["securityContext"]
    assert (inside["allowPrivilegeEscalation"], inside["readOnlyRootFilesystem"]) == (False, True)
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert pod(WORKLOADS[name])["securityContext"]["runAsNonRoot"] is True
    assert pod(WORKLOADS[name])["automountServiceAccountToken"] is False
    assert not container(WORKLOADS[name]).get("env"), "secrets come from the Secret alone"


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_command_line_of_a_workload_is_one(name: str) -> None:
    parse([word for word in container(WORKLOADS[name])["args"] if word != "pillarbox"])


@pytest.mark.parametrize("name", ["pillarbox-relay.service", "pillarbox-consume@.service"])
def test_the_command_line_of_a_unit_is_one(name: str) -> None:
    line = re.search(r"^ExecStart=/opt/pillarbox/bin/pillarbox (.*)$", unit(name), re.MULTILINE)
    assert line is not None
    parse(shlex.split(line[1]), PILLARBOX_CONSUME_TOPIC="order-events")


def unit(name: str) -> str:
    return (ROOT / "deploy" / "systemd" / name).read_text()


def parse(words: list[str], **environment: str) -> None:
    """Let the real parser read a command line, and run nothing."""
    command, path = typer.main.get_command(app), ["pillarbox"]
    while hasattr(command, "commands"):
        path.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        prefix = "_".join(["PILLARBOX", *path[1:]]).upper()
        command.make_context(" ".join(path), words, auto_envvar_prefix=prefix)


@pytest.mark.parametrize(
    "name",
    [
        *ENVIRONMENT,
        *re.findall(
            r"PILLARBOX_\w+", CONTAINERFILE + unit("pillarbox-consume@.service") + unit("pillarbox-relay.service")
        ),
    ],
)
def test_every_variable_is_a_setting_or_a_flag(name: str) -> None:
    assert name in FLAGS | {f"PILLARBOX_{key.replace('.', '_').upper()}" for key in known_keys()}


def test_the_settings_of_the_manifests_are_accepted() -> None:
    settings = Settings.load(environment=ENVIRONMENT)
    assert settings.health.listen == "0.0.0.0:9464"
    assert settings.database == ENVIRONMENT["PILLARBOX_DATABASE"]


def instructions(word: str) -> list[str]:
    return re.findall(rf"^{word} (.*)$", CONTAINERFILE, re.MULTILINE)


def test_the_image_runs_our_command_as_nobody_special_and_stops_as_daemons_want_it() -> None:
    assert instructions("ENTRYPOINT") == ['["pillarbox"]']
    assert "pillarbox" in PYPROJECT["project"]["scripts"]
    (arguments,) = instructions("CMD")
    parse(json.loads(arguments))
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("USER") == [str(pod(DOCUMENTS["relay Deployment"])["securityContext"]["runAsUser"])]
    assert instructions("EXPOSE") == [ENVIRONMENT["PILLARBOX_HEALTH_LISTEN"].rpartition(":")[2]]


def test_the_extras_of_the_image_are_there() -> None:
    (extras,) = (line.removeprefix("EXTRAS=") for line in instructions("ARG") if line.startswith("EXTRAS="))
    assert {*extras.split(",")} <= {*PYPROJECT["project"]["optional-dependencies"]}
    assert "cli" in extras


def test_what_the_image_copies_is_enough_to_build_the_command(tmp_path: Path) -> None:
    for line in instructions("COPY"):
        *sources, target = line.split()
        if sources[0].startswith("--from="):
            continue
        for source in sources:
            there = tmp_path / "build" / target
            there.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, there, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, there)
    uv = str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*install, "--target", tmp_path / "site", tmp_path / "build"], check=True)
    script = tmp_path / "site" / "bin" / "pillarbox"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([script, "--version"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"pillarbox {PYPROJECT['project']['version']}\n"
