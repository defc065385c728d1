{{- /*
Which addresses are pods' as YAML: config, fields of a KubeProxyConfiguration; key, the lookup
that found them; and source, which says where that was. Nothing when nothing was found.
A lookup whose object is gone, or broken, leaves what the installed release has from it. Only
administrators write the objects, or a tenant could choose who is inside the cluster.
*/ -}}
{{- define "beeline.pods" -}}
{{- $found := dict -}}
{{- if not (include "beeline.pods.given" .) -}}
{{- $former := include "beeline.pods.release" . | fromJson -}}
{{- range $key := list "kubeProxy" "kubeadm" "flannel" "calico" "nodes" -}}
{{- if not $found -}}
{{- $found = include (printf "beeline.pods.%s" $key) $ | fromYaml -}}
{{- if and (not $found) (eq $key (toString $former.key)) -}}
{{- $found = $former -}}
{{- else if $found -}}
{{- $_ := set $found "key" $key -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $found -}}
{{- toYaml $found -}}
{{- end -}}
{{- end -}}

{{- /* What the notes after an install say of it. */ -}}
{{- define "beeline.pods.note" -}}
{{- $pods := include "beeline.pods" . | fromYaml -}}
{{- if $pods -}}
Pods: {{ with $pods.config.clusterCIDR }}clusterCIDR {{ . }}, {{ end }}detectLocalMode {{ $pods.config.detectLocalMode -}}
{{- range $pods.config.detectLocal }} ({{ . }}){{ end }}, taken from
{{ $pods.source }}.
{{- else if include "beeline.pods.given" . -}}
Pods: clusterCIDR and detectLocalMode are as the values say.
{{- else -}}
Pods: no clusterCIDR was found. Set kubeProxyConfig.clusterCIDR, or no route to pods of other
nodes tells which devices lead to them.
{{- end -}}
{{- end -}}

{{- /* "true" when the values say where pods are, or that nothing shall be looked up. */ -}}
{{- define "beeline.pods.given" -}}
{{- $fields := keys (default dict .Values.kubeProxyConfig) | join " " -}}
{{- if or .Values.existingKubeProxyConfigMap.name (regexMatch `\b(clusterCIDR|detectLocal(Mode)?)\b` $fields)
      (regexMatch `--?(cluster-cidr|detect-local-mode|pod-bridge-interface|pod-interface-name-prefix)\b` (join " " .Values.extraArgs)) -}}
true
{{- end -}}
{{- end -}}

{{- /* What the installed release has found, as the annotation of its ConfigMap. */ -}}
{{- define "beeline.pods.release" -}}
{{- $map := lookup "v1" "ConfigMap" .Release.Namespace (include "beeline.fullname" .) -}}
{{- dig "metadata" "annotations" "config.beeline.io/pods" "{}" $map -}}
{{- end -}}

{{- /* From kube-proxy's configuration, unless kube-proxy itself would reject it. */ -}}
{{- define "beeline.pods.kubeProxy" -}}
{{- $map := lookup "v1" "ConfigMap" "kube-system" "kube-proxy" -}}
{{- $in := dig "data" "config.conf" "" $map | fromYaml -}}
{{- $given := include "beeline.stringAt" (dict "in" $in "path" (list "clusterCIDR")) -}}
{{- $cidrs := include "beeline.cidrs" (splitList "," $given) -}}
{{- $mode := include "beeline.stringAt" (dict "in" $in "path" (list "detectLocalMode")) | default "ClusterCIDR" -}}
{{- $field := get (dict "BridgeInterface" "bridgeInterface" "InterfaceNamePrefix" "interfaceNamePrefix") $mode -}}
{{- $device := include "beeline.stringAt" (dict "in" $in "path" (list "detectLocal" $field)) -}}
{{- $config := dict "detectLocalMode" $mode -}}
{{- if $cidrs -}}
{{- $_ := set $config "clusterCIDR" $cidrs -}}
{{- end -}}
{{- if $device -}}
{{- $_ := set $config "detectLocal" (dict $field $device) -}}
{{- end -}}
{{- if and (or $cidrs (not $given)) (or (eq $mode "NodeCIDR") (and (eq $mode "ClusterCIDR") $cidrs) (and $field $device)) -}}
{{- dict "config" $config "source" "the key config.conf of the ConfigMap kube-system/kube-proxy" | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* From what kubeadm would give to kube-proxy. */ -}}
{{- define "beeline.pods.kubeadm" -}}
{{- $map := lookup "v1" "ConfigMap" "kube-system" "kubeadm-config" -}}
{{- $in := dig "data" "ClusterConfiguration" "" $map | fromYaml -}}
{{- $given := include "beeline.stringAt" (dict "in" $in "path" (list "networking" "podSubnet")) -}}
{{- include "beeline.pods.ofCIDRs" (dict "cidrs" (splitList "," $given) "source" "the ConfigMap kube-system/kubeadm-config") -}}
{{- end -}}

{{- /*
From flannel's configuration. Anybody who may make namespaces can make one of its name, so
the namespace is one in which a ClusterRoleBinding gives flannel its rights.
*/ -}}
{{- define "beeline.pods.flannel" -}}
{{- $binding := lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "flannel" -}}
{{- $found := "" -}}
{{- range dig "subjects" list $binding -}}
{{- if and .namespace (not $found) -}}
{{- $map := lookup "v1" "ConfigMap" .namespace "kube-flannel-cfg" -}}
{{- $in := dig "data" "net-conf.json" "" $map | fromJson -}}
{{- $cidrs := list -}}
{{- if ne (toString $in.EnableIPv4) "false" -}}
{{- $cidrs = append $cidrs (include "beeline.stringAt" (dict "in" $in "path" (list "Network"))) -}}
{{- end -}}
{{- if eq (toString $in.EnableIPv6) "true" -}}
{{- $cidrs = append $cidrs (include "beeline.stringAt" (dict "in" $in "path" (list "IPv6Network"))) -}}
{{- end -}}
{{- $found = include "beeline.pods.ofCIDRs" (dict "cidrs" $cidrs "source" (printf "the ConfigMap %s/kube-flannel-cfg" .namespace)) -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* From Calico's pools, which are cluster-wide; not those of addresses for Services alone. */ -}}
{{- define "beeline.pods.calico" -}}
{{- $cidrs := list -}}
{{- if .Capabilities.APIVersions.Has "crd.projectcalico.org/v1/IPPool" -}}
{{- range dig "items" list (lookup "crd.projectcalico.org/v1" "IPPool" "" "") -}}
{{- $uses := "" -}}
{{- if kindIs "map" .spec -}}
{{- $uses = toString (default "Workload" .spec.allowedUses) -}}
{{- end -}}
{{- if contains "Workload" $uses -}}
{{- $cidrs = append $cidrs (include "beeline.stringAt" (dict "in" .spec "path" (list "cidr"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "beeline.pods.ofCIDRs" (dict "cidrs" $cidrs "source" "Calico's IPPools") -}}
{{- end -}}

{{- /* Each node's own CIDRs, where every node has some. */ -}}
{{- define "beeline.pods.nodes" -}}
{{- $nodes := dig "items" list (lookup "v1" "Node" "" "") -}}
{{- $without := 0 -}}
{{- range $nodes -}}
{{- if not (dig "spec" "podCIDR" "" .) -}}
{{- $without = add1 $without -}}
{{- end -}}
{{- end -}}
{{- if and $nodes (eq (int $without) 0) -}}
{{- dict "config" (dict "detectLocalMode" "NodeCIDR") "source" "the podCIDRs that every Node has" | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* From CIDRs of the whole cluster; nothing without, or when one is none. */ -}}
{{- define "beeline.pods.ofCIDRs" -}}
{{- with include "beeline.cidrs" .cidrs -}}
{{- dict "config" (dict "clusterCIDR" . "detectLocalMode" "ClusterCIDR") "source" $.source | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* A list of CIDRs as one word; nothing when the agent would reject one. */ -}}
{{- define "beeline.cidrs" -}}
{{- $good := list -}}
{{- $octet := `(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)` -}}
{{- range . -}}
{{- $cidr := trim . -}}
{{- $v4 := regexMatch (printf `^(%s\.){3}%s/(3[0-2]|[12]?\d)$` $octet $octet) $cidr -}}
{{- $v6 := regexMatch `^[0-9a-fA-F:]+/(12[0-8]|1[01]\d|[1-9]?\d)$` $cidr -}}
{{- $addr := regexReplaceAll `/.*` $cidr "" -}}
{{- $full := regexMatch `^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$` $addr -}}
{{- $short := regexMatch `^([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4})*)?::([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4})*)?$` $addr -}}
{{- $groups := len (regexFindAll `[0-9a-fA-F]+` $addr -1) -}}
{{- if or $v4 (and $v6 (or $full (and $short (lt $groups 8)))) -}}
{{- $good = append $good $cidr -}}
{{- end -}}
{{- end -}}
{{- if eq (len $good) (len .) -}}
{{- join "," $good -}}
{{- end -}}
{{- end -}}

{{- /* The string at a path of YAML or JSON; nothing when something else is there. */ -}}
{{- define "beeline.stringAt" -}}
{{- $at := .in -}}
{{- range .path -}}
{{- if kindIs "map" $at -}}
{{- $at = get $at . -}}
{{- else -}}
{{- $at = "" -}}
{{- end -}}
{{- end -}}
{{- if kindIs "string" $at -}}
{{- $at -}}
{{- end -}}
{{- end -}}
