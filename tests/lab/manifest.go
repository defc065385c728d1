package lab

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// Service returns the manifest of a Service in the namespace "default". spec is
// YAML on one line; more are further lines at the top level, such as a status.
func Service(name, spec string, more ...string) string {
	lines := append([]string{
		"apiVersion: v1",
		"kind: Service",
		fmt.Sprintf("metadata: {name: %s, namespace: default}", name),
		"spec: " + spec,
	}, more...)
	return strings.Join(lines, "\n") + "\n"
}

// Slice returns the manifest of the one EndpointSlice of a Service and family,
// with ready endpoints that serve ports: "NAME:NUMBER/PROTOCOL", the name left
// out for an unnamed port, separated by commas. Without addresses the slice is
// of IPv4.
func Slice(service, ports string, addrs ...netip.Addr) string {
	endpoints := make([]string, len(addrs))
	for i, a := range addrs {
		endpoints[i] = fmt.Sprintf("{addresses: [%q]}", a)
	}
	return SliceOf(service, ports, endpoints...)
}

// SliceOf is Slice with endpoints in YAML.
func SliceOf(service, ports string, endpoints ...string) string {
	family := "IPv4"
	if strings.Contains(strings.Join(endpoints, ""), "::") {
		family = "IPv6"
	}
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-%s
  namespace: default
  labels: {kubernetes.io/service-name: %s}
addressType: %s
ports: [%s]
endpoints: [%s]
`, service, strings.ToLower(family), service, family, slicePorts(ports), strings.Join(endpoints, ", "))
}

func slicePorts(ports string) string {
	var list []string
	for _, p := range strings.Split(ports, ",") {
		name, rest, named := strings.Cut(p, ":")
		if !named {
			name, rest = "", p
		}
		number, protocol, _ := strings.Cut(rest, "/")
		list = append(list, fmt.Sprintf("{name: %q, port: %s, protocol: %s}", name, number, protocol))
	}
	return strings.Join(list, ", ")
}

// update decodes manifests as a source would hand them over.
func update(manifests []string) (source.Update, error) {
	var u source.Update
	for _, m := range manifests {
		if err := addManifest(&u, []byte(m)); err != nil {
			return u, fmt.Errorf("%w in\n%s", err, m)
		}
	}
	return u, nil
}

func addManifest(u *source.Update, text []byte) error {
	var kind struct{ Kind string }
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Service":
		var object corev1.Service
		if err := yaml.UnmarshalStrict(text, &object); err != nil {
			return err
		}
		if s := convert.Service(&object, convert.Allowed{Annotations: convert.AllAnnotations}); s != nil {
			u.PutServices = append(u.PutServices, s)
		}
	case "EndpointSlice":
		var object discoveryv1.EndpointSlice
		if err := yaml.UnmarshalStrict(text, &object); err != nil {
			return err
		}
		if s := convert.Slice(&object, convert.AllAnnotations); s != nil {
			u.PutSlices = append(u.PutSlices, s)
		}
	case "Node":
		var object corev1.Node
		if err := yaml.UnmarshalStrict(text, &object); err != nil {
			return err
		}
		u.PutNodes = append(u.PutNodes, convert.Node(&object))
	default:
		return fmt.Errorf("kind %q", kind.Kind)
	}
	return nil
}
