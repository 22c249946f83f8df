"""What is shipped to run the exporter: manifests whose parts fit each other, and commands that the exporter takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from dashboards.alerts.generate import ALERTS
from exporters.options import DEFAULT_PORT, parse_options

DEPLOY = Path(__file__).parents[3] / "exporters" / "deploy"
RULES = Path(__file__).parents[3] / "dashboards" / "alerts" / "scope.prometheusrule.yaml"
DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def load_manifests() -> dict[str, Any]:
    """Return the manifests by their kind."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


def test_every_manifest_has_what_the_server_asks_for() -> None:
    """Version, kind, a name that can be one, and one namespace, which is made first."""
    manifests = load_manifests()
    assert list(manifests) == ["Namespace", "DaemonSet", "Service", "ServiceMonitor"]
    versions = {kind: manifest["apiVersion"] for kind, manifest in manifests.items()}
    assert versions == {
        "Namespace": "v1", "DaemonSet": "apps/v1", "Service": "v1", "ServiceMonitor": "monitoring.coreos.com/v1"
    }  # fmt: skip
    for kind, manifest in manifests.items():
        assert DNS_NAME.fullmatch(manifest["metadata"]["name"]), kind
        if kind != "Namespace":
            assert manifest["metadata"]["namespace"] == manifests["Namespace"]["metadata"]["name"]


def test_selectors_find_what_they_are_meant_for() -> None:
    """DaemonSet and Service select the pods, the ServiceMonitor the Service, and each port has its name."""
    manifests = load_manifests()
    template = manifests["DaemonSet"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert manifests["DaemonSet"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    service, monitor = manifests["Service"], manifests["ServiceMonitor"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    (of_service,) = service["spec"]["ports"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (port["containerPort"], of_service["port"], of_service["targetPort"]) == (
        DEFAULT_PORT,
        DEFAULT_PORT,
        port["name"],
    )
    assert endpoint["port"] == of_service["name"]
    for probe in ("livenessProbe", "readinessProbe"):
        (kind,) = {"tcpSocket", "httpGet"} & container[probe].keys()
        assert container[probe][kind]["port"] == port["name"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_container_starts_the_exporter_without_rights() -> None:
    """Its command is one that the exporter takes; no root, nothing writable, no service account."""
    pod = load_manifests()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "exporters"]
    variables = {item["name"] for item in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= variables
    options = parse_options([argument.replace("$(POD_IP)", "192.0.2.1") for argument in container["args"]])
    assert (options.host, options.port, options.runs) == ("192.0.2.1", DEFAULT_PORT, ("/runs/*",))
    security = container["securityContext"]
    assert security["runAsNonRoot"] is security["readOnlyRootFilesystem"] is True
    assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
    assert pod["automountServiceAccountToken"] is False
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    # The sampling process and the server together stay far below.
    assert container["resources"]["limits"]["memory"] == "256Mi"


def test_the_rules_of_the_manifest_have_legal_names() -> None:
    """The operator takes them: labels that it selects by, groups of different names, every alert once."""
    rule = yaml.safe_load(RULES.read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert DNS_NAME.fullmatch(rule["metadata"]["name"])
    names = [group["name"] for group in rule["spec"]["groups"]]
    assert len(names) == len(set(names))
    alerts = [item["alert"] for group in rule["spec"]["groups"] for item in group["rules"] if "alert" in item]
    assert sorted(alerts) == sorted(alert.name for alert in ALERTS)


def test_the_unit_of_systemd_starts_the_exporter_without_root() -> None:
    """The command is one that the exporter takes, no setting stands twice, and only one capability is left."""
    settings: dict[str, str] = {}
    for line in (DEPLOY / "scope-exporter.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            assert name not in settings, name
            settings[name] = value
    program, *arguments = shlex.split(settings["ExecStart"])
    assert (Path(program).name, arguments[:2]) == ("python", ["-m", "exporters"])
    options = parse_options(arguments[2:])
    assert (options.is_loopback, options.port) == (True, DEFAULT_PORT)
    assert (settings["DynamicUser"], settings["CapabilityBoundingSet"]) == ("yes", "CAP_SYSLOG")
    assert (settings["NoNewPrivileges"], settings["ProtectSystem"]) == ("yes", "strict")
    # An orderly end takes three seconds at most; see `Supervisor.stop`.
    assert int(settings["TimeoutStopSec"]) > 5
