{{- /* The agent's configuration file: a document of Beeline's, one of kube-proxy's. */ -}}
{{- define "beeline.configFile" -}}
{{- if and .Values.kubeProxyConfig .Values.existingKubeProxyConfigMap.name -}}
{{- fail "kubeProxyConfig and existingKubeProxyConfigMap.name cannot both be set: the agent reads one KubeProxyConfiguration" -}}
{{- end -}}
apiVersion: config.beeline.io/v1alpha1
kind: BeelineConfiguration
{{- with .Values.config }}
{{ toYaml . }}
{{- end }}
{{- $pods := include "beeline.pods" . | fromYaml }}
{{- with merge (deepCopy (default dict .Values.kubeProxyConfig)) (default dict $pods.config) }}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The settings whose change restarts the agents. */ -}}
{{- define "beeline.configChecksum" -}}
{{- $config := include "beeline.configFile" . -}}
{{- with .Values.existingKubeProxyConfigMap.name -}}
{{- $map := lookup "v1" "ConfigMap" $.Release.Namespace . -}}
{{- $config = cat $config (dig "data" $.Values.existingKubeProxyConfigMap.key "" $map) -}}
{{- end -}}
{{- sha256sum $config -}}
{{- end -}}
