{{- define "beeline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "beeline.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "beeline.selectorLabels" -}}
app.kubernetes.io/name: {{ include "beeline.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "beeline.labels" -}}
{{ include "beeline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: beeline
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "beeline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "beeline.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "beeline.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* The agents serve metrics to other hosts only when a monitor is enabled. */ -}}
{{- define "beeline.metricsAddress" -}}
{{- $m := .Values.metrics -}}
{{- $address := default (ternary "0.0.0.0" "127.0.0.1" (or $m.podMonitor.enabled $m.serviceMonitor.enabled)) $m.address -}}
{{- include "beeline.hostPort" (dict "host" $address "port" $m.port) -}}
{{- end -}}

{{- /* An address and a port as one word; IPv6 addresses get brackets. */ -}}
{{- define "beeline.hostPort" -}}
{{- ternary (printf "[%s]" .host) .host (contains ":" .host) -}}:{{ int .port }}
{{- end -}}

{{/*
Whether agents are to listen on kube-proxy's port for health while it runs. It is looked for in the release's own
namespace alone, where whoever installs may read DaemonSets.
*/}}
{{- define "beeline.besideKubeProxy" -}}
{{- if and (eq .Release.Namespace "kube-system") (eq (int .Values.healthz.port) 10256) -}}
{{- $set := lookup "apps/v1" "DaemonSet" .Release.Namespace "kube-proxy" -}}
{{- if dig "status" "desiredNumberScheduled" 0 $set | int }}true{{ end -}}
{{- end -}}
{{- end }}
