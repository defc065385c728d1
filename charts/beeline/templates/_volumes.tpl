{{- /* The folder of the node with the cgroup2 hierarchy to attach to. */ -}}
{{- define "beeline.cgroupMount" -}}
{{- $root := default "/sys/fs/cgroup" .Values.cgroupRoot -}}
{{- if or (eq $root "/sys/fs/cgroup") (hasPrefix "/sys/fs/cgroup/" $root) -}}
/sys/fs/cgroup
{{- else -}}
{{ $root }}
{{- end -}}
{{- end -}}

{{- define "beeline.volumeMounts" -}}
- name: bpffs
  mountPath: {{ .Values.bpffs.path }}
# In place of the container's own view, in which its cgroup is the root.
- name: cgroup
  mountPath: {{ include "beeline.cgroupMount" . }}
  readOnly: true
# Where the agent mounts cgroup2 on a node that has cgroup v1 alone.
- name: run
  mountPath: /run/beeline
- name: xtables-lock
  mountPath: /run/xtables.lock
- name: config
  mountPath: /etc/beeline
  readOnly: true
{{- if .Values.existingKubeProxyConfigMap.name }}
- name: kube-proxy-config
  mountPath: /etc/kube-proxy
  readOnly: true
{{- end }}
{{- end -}}

{{- define "beeline.volumes" -}}
- name: bpffs
  hostPath:
    path: {{ .Values.bpffs.path }}
    type: Directory
- name: cgroup
  hostPath:
    path: {{ include "beeline.cgroupMount" . }}
    type: Directory
- name: run
  emptyDir: {}
{{- if include "beeline.tunnels" . }}
- name: dsr-secret
  secret:
    secretName: {{ include "beeline.dsrSecret" . }}
    defaultMode: 0400
{{- end }}
{{- with .Values.networkNamespaces.path }}
- name: network-namespaces
  hostPath:
    path: {{ . }}
    type: DirectoryOrCreate
{{- end }}
# What keeps programs that change iptables-legacy out of each other's way.
- name: xtables-lock
  hostPath:
    path: /run/xtables.lock
    type: FileOrCreate
- name: config
  configMap:
    name: {{ include "beeline.fullname" . }}
{{- with .Values.existingKubeProxyConfigMap }}
{{- if .name }}
- name: kube-proxy-config
  configMap:
    name: {{ .name }}
    items:
      - key: {{ .key }}
        path: {{ .key }}
{{- end }}
{{- end }}
{{- end -}}
