{{- /* The container that serves. */ -}}
{{- define "beeline.agentContainer" -}}
{{- $api := include "beeline.apiServer" . | fromYaml -}}
- name: agent
  {{- include "beeline.container" (list .) | nindent 2 }}
  volumeMounts:
    {{- include "beeline.volumeMounts" . | nindent 4 }}
    {{- if include "beeline.tunnels" . }}
    - name: dsr-secret
      mountPath: /etc/beeline-dsr
      readOnly: true
    {{- end }}
    {{- with .Values.networkNamespaces.path }}
    - name: network-namespaces
      mountPath: {{ . }}
      readOnly: true
      # Those of pods that come later show up, too.
      mountPropagation: HostToContainer
    {{- end }}
  args:
    {{- include "beeline.agentArgs" . | nindent 4 }}
  env:
    - name: KUBERNETES_SERVICE_HOST
      value: {{ $api.host | quote }}
    - name: KUBERNETES_SERVICE_PORT
      value: {{ $api.port | int | quote }}
    - name: NODE_NAME
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
  ports:
    - name: healthz
      containerPort: {{ int .Values.healthz.port }}
      protocol: TCP
    - name: metrics
      containerPort: {{ int .Values.metrics.port }}
      protocol: TCP
  # Passes when the tables hold all Services: an hour for an API server that is away or
  # slow, since an agent that is started anew lists everything once more.
  startupProbe:
    {{- include "beeline.probe" (list . "/startupz") | nindent 4 }}
    periodSeconds: 2
    failureThreshold: 1800
  # A node that is about to be deleted is not ready, and no reason to restart.
  readinessProbe:
    {{- include "beeline.probe" (list . "/healthz") | nindent 4 }}
    periodSeconds: 10
  livenessProbe:
    {{- include "beeline.probe" (list . "/livez") | nindent 4 }}
    periodSeconds: 10
    failureThreshold: 6
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "beeline.agentArgs" -}}
{{ include "beeline.configArgs" . }}
- --hostname-override=$(NODE_NAME)
- --healthz-bind-address={{ include "beeline.hostPort" (dict "host" .Values.healthz.address "port" .Values.healthz.port) }}
- --metrics-bind-address={{ include "beeline.metricsAddress" . }}
{{- if eq .Values.priorityClassName "system-node-critical" }}
# What the kubelet gives to such pods; less takes another capability.
- --oom-score-adj=-997
{{- end }}
{{ include "beeline.placeArgs" . }}
{{- if include "beeline.tunnels" . }}
- --dsr-secret-file=/etc/beeline-dsr/{{ .Values.dsr.existingSecret.key }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "beeline.configArgs" -}}
- --config=/etc/beeline/config.yaml
{{- with .Values.existingKubeProxyConfigMap }}
{{- if .name }}
- --config=/etc/kube-proxy/{{ .key }}
# The way to the API server is this pod's, not that of kube-proxy's.
- --kubeconfig=
{{- end }}
{{- end }}
{{- end -}}

{{- define "beeline.probe" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 1 }}
  port: {{ int $root.Values.healthz.port }}
{{- with $root.Values.healthz.address }}
{{- if not (has . (list "0.0.0.0" "::")) }}
  host: {{ . | quote }}
{{- end }}
{{- end }}
timeoutSeconds: 5
{{- end -}}
