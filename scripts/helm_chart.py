#!/usr/bin/env python3
"""Makes the Helm chart of the manifests in deploy/, so that there is one source of both.

    scripts/helm_chart.py FOLDER

writes FOLDER/prorata-VERSION.tgz. A manifest becomes a template by three replacements: its image, its
namespace and the agent's folder."""

import io
import pathlib
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of which folder of deploy/ the manifests of a mode are, and of which those of both.
MODES = {"dra": "kubernetes", "resources": "kubernetes-resources"}
BOTH = "webhook"
# Helm makes the namespace; the scheduler's configuration is for its own file.
NOT_FOR_HELM = {"kustomization.yaml", "namespace.yaml", "scheduler-configuration.yaml"}
REPLACED = {
    "image: prorata-kubernetes": 'image: {{ required "give the image: --set image=..." .Values.image | quote }}',
    "prorata-system": "{{ .Release.Namespace }}",
    "hostPath: {path: /run/prorata,": "hostPath: {path: {{ .Values.agentDir | quote }},",
}

CHART = """apiVersion: v2
name: prorata
description: Shares of GPUs for pods
version: {version}
appVersion: {version}
kubeVersion: ">=1.30.0-0"
"""
VALUES = """# The image of deploy/kubernetes/Dockerfile, where the cluster's nodes find it.
image: ""
# dra: by Dynamic Resource Allocation (docs/guide/kubernetes.md); resources: without it
# (docs/guide/kubernetes-resources.md).
mode: dra
# Where the agent of each node has its socket.
agentDir: /run/prorata
"""
UNKNOWN_MODE = """{{- if not (has .Values.mode (list "dra" "resources")) }}
{{- fail (printf "mode is '%s', and must be dra or resources" .Values.mode) }}
{{- end }}
"""
NOTES = """{{ .Chart.Name }} {{ .Chart.Version }} serves nodes that are labelled prorata.dev/agent=true:
    kubectl label node NODE prorata.dev/agent=true
"""


def template(path: pathlib.Path) -> str:
    manifest = path.read_text()
    assert "{{" not in manifest, "a manifest would be taken for a template"
    for what, by in REPLACED.items():
        manifest = manifest.replace(what, by)
    return manifest


def manifests(folder: str) -> list[pathlib.Path]:
    paths = sorted((ROOT / "deploy" / folder).glob("*.yaml"))
    return [path for path in paths if path.name not in NOT_FOR_HELM]


def files() -> dict[str, str]:
    """By their names in the chart."""
    version = (ROOT / "VERSION").read_text().strip()
    made = {
        "Chart.yaml": CHART.format(version=version),
        "values.yaml": VALUES,
        "templates/check.yaml": UNKNOWN_MODE,
        "templates/NOTES.txt": NOTES,
    }
    for mode, folder in MODES.items():
        for path in manifests(folder):
            only = f'{{{{- if eq .Values.mode "{mode}" }}}}\n{template(path).rstrip()}\n{{{{- end }}}}\n'
            made[f"templates/{mode}-{path.name}"] = only
    for path in manifests(BOTH):
        made[f"templates/{path.name}"] = template(path)
    return made


def write(folder: pathlib.Path) -> pathlib.Path:
    made = files()
    version = (ROOT / "VERSION").read_text().strip()
    path = folder / f"prorata-{version}.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in made.items():
            entry = tarfile.TarInfo(f"prorata/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/helm_chart.py FOLDER")
    print(write(pathlib.Path(sys.argv[1])))
