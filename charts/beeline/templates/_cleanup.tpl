{{- define "beeline.takesDown" -}}
{{- or .Values.cleanup .Values.drain | ternary "true" "" -}}
{{- end -}}

{{- /*
Takes Beeline down on the node, then waits: the pod is ready when that is done. cleanup comes before
drain, whose value an upgrade that reuses values keeps.
*/ -}}
{{- define "beeline.cleanupContainers" -}}
initContainers:
  - name: cleanup
    {{- include "beeline.container" (list .) | nindent 4 }}
    volumeMounts:
      {{- include "beeline.volumeMounts" . | nindent 6 }}
    args:
      - --{{ ternary "cleanup" "drain" .Values.cleanup }}
      {{- include "beeline.configArgs" . | nindent 6 }}
      {{- include "beeline.placeArgs" . | nindent 6 }}
containers:
  - name: cleaned-up
    image: {{ .Values.pauseImage }}
{{- end -}}

{{- /*
Removes what kube-proxy left, before the agent starts. Programs that a former agent
attached go on serving meanwhile. What it cannot remove does not keep the agent down, which finds it
and tells.
*/ -}}
{{- define "beeline.cleanupKubeProxyContainer" -}}
- name: cleanup-kube-proxy
  {{- include "beeline.container" (list .) | nindent 2 }}
  volumeMounts:
    - name: xtables-lock
      mountPath: /run/xtables.lock
  args:
    - --cleanup-kube-proxy
    - --best-effort
{{- end -}}
