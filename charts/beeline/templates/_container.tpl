{{- /* What every container of the commands has: a list of the root and more capabilities. */ -}}
{{- define "beeline.container" -}}
{{- $root := first . -}}
image: {{ include "beeline.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
# The status of a pod that fails has the last lines of its log.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "beeline.securityContext" . | nindent 2 }}
{{- end -}}

{{- define "beeline.securityContext" -}}
{{- $more := rest . -}}
{{- with first . -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if .Values.privileged }}
privileged: true
{{- else }}
capabilities:
  drop: [ALL]
  add:
    {{- concat .Values.capabilities $more | uniq | toYaml | nindent 4 }}
seccompProfile:
  {{- toYaml .Values.seccompProfile | nindent 2 }}
appArmorProfile:
  {{- toYaml .Values.appArmorProfile | nindent 2 }}
{{- with .Values.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Where in a node's file systems Beeline works; the same paths in the container. */ -}}
{{- define "beeline.placeArgs" -}}
- --bpffs={{ .Values.bpffs.path }}
{{- with .Values.cgroupRoot }}
- --cgroup-root={{ . }}
{{- end }}
{{- end -}}
