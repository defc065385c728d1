{{- /*
The API server's address as YAML: host, port, and source, which says where it was found.
A Service cannot lead there: nothing translates one before the agent has read them.
*/ -}}
{{- define "beeline.apiServer" -}}
{{- $found := dict -}}
{{- if .Values.apiServer.host -}}
{{- $found = dict "host" .Values.apiServer.host "port" (default 6443 .Values.apiServer.port) "source" "the value apiServer.host" -}}
{{- else -}}
{{- range $lookup := list "kubeProxy" "clusterInfo" "release" -}}
{{- if not $found -}}
{{- $found = include (printf "beeline.apiServer.%s" $lookup) $ | fromYaml -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail "no address of the API server: set apiServer.host, and apiServer.port unless it is 6443. It was looked for in the kubeconfig of the ConfigMap kube-system/kube-proxy, in the ConfigMap kube-public/cluster-info and in the installed release; helm template and --dry-run=client cannot look into the cluster" -}}
{{- /* Only helm lint comes here. */ -}}
{{- $found = dict "host" "" "port" 0 "source" "nowhere" -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- /* From the kubeconfig that kubeadm and others give to kube-proxy. */ -}}
{{- define "beeline.apiServer.kubeProxy" -}}
{{- $map := lookup "v1" "ConfigMap" "kube-system" "kube-proxy" -}}
{{- range $key := list "kubeconfig.conf" "kubeconfig" -}}
{{- $text := dig "data" $key "" $map -}}
{{- if $text -}}
{{- include "beeline.apiServer.ofKubeconfig" (dict "text" $text "source" (printf "the key %s of the ConfigMap kube-system/kube-proxy" $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* From what kubeadm tells to nodes that join. */ -}}
{{- define "beeline.apiServer.clusterInfo" -}}
{{- $map := lookup "v1" "ConfigMap" "kube-public" "cluster-info" -}}
{{- include "beeline.apiServer.ofKubeconfig" (dict "text" (dig "data" "kubeconfig" "" $map) "source" "the ConfigMap kube-public/cluster-info") -}}
{{- end -}}

{{- /* From the release as it is installed: the ConfigMaps above may be gone since. */ -}}
{{- define "beeline.apiServer.release" -}}
{{- $set := lookup "apps/v1" "DaemonSet" .Release.Namespace (include "beeline.fullname" .) -}}
{{- $env := dict -}}
{{- range dig "spec" "template" "spec" "containers" list $set -}}
{{- range .env -}}
{{- $_ := set $env .name (default "" .value) -}}
{{- end -}}
{{- end -}}
{{- if $env.KUBERNETES_SERVICE_HOST -}}
{{- dict "host" $env.KUBERNETES_SERVICE_HOST "port" (int $env.KUBERNETES_SERVICE_PORT) "source" "the installed release" | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* From the server of a kubeconfig's first cluster; nothing when it has none, or no URL. */ -}}
{{- define "beeline.apiServer.ofKubeconfig" -}}
{{- $clusters := get (fromYaml .text) "clusters" -}}
{{- $server := "" -}}
{{- if kindIs "slice" $clusters -}}
{{- range $clusters -}}
{{- $server = default (include "beeline.stringAt" (dict "in" . "path" (list "cluster" "server"))) $server -}}
{{- end -}}
{{- end -}}
{{- if regexMatch `^https?://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d+)?(/[\w./-]*)?$` $server -}}
{{- $url := urlParse $server -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default "443" -}}
{{- dict "host" $url.hostname "port" (int $port) "source" .source | toYaml -}}
{{- end -}}
{{- end -}}
