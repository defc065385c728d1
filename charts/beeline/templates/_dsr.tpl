{{- /* "true" when packets may go from node to node in a tunnel. */ -}}
{{- define "beeline.tunnels" -}}
{{- $annotation := "service.beeline.io/forwarding-mode" -}}
{{- if or (has (dig "forwardingMode" "" .Values.config) (list "dsr" "hybrid"))
      (has $annotation (dig "allowedAnnotations" list .Values.config))
      (contains "forwarding-mode" (join " " .Values.extraArgs)) -}}
true
{{- end -}}
{{- end -}}

{{- /* The Secret by which nodes tell each other's packets in the tunnel from forged ones. */ -}}
{{- define "beeline.dsrSecret" -}}
{{- default (printf "%s-dsr" (include "beeline.fullname" .)) .Values.dsr.existingSecret.name -}}
{{- end -}}
