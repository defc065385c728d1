{{- /*
Mounts a BPF file system on the node where none is, as on nodes without systemd. The mount
has to pass to the node, which only a privileged container may make it do.
*/ -}}
{{- define "beeline.initContainer" -}}
- name: init
  image: {{ include "beeline.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    readOnlyRootFilesystem: true
    privileged: true
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - name: bpffs
      mountPath: {{ .Values.bpffs.path }}
      mountPropagation: Bidirectional
  args:
    - --init-only
    - --bpffs={{ .Values.bpffs.path }}
{{- end -}}
