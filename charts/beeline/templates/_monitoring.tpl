{{- /* How a monitor asks an agent; its series are named by node, as pods change. */ -}}
{{- define "beeline.scrape" -}}
{{- with .interval -}}
interval: {{ . }}
{{ end -}}
relabelings:
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
{{- end -}}
