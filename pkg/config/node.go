package config

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/policy"
)

// setSource checks that there is one source of Services.
func (s *Settings) setSource(manifests *field.Path) field.ErrorList {
	if s.Beeline.Manifests != "" && (s.KubeProxy.ClientConnection.Kubeconfig != "" || s.Beeline.Master != "") {
		return field.ErrorList{field.Forbidden(manifests, "cannot be combined with --kubeconfig or --master: Services come from one place")}
	}
	return nil
}

// setNode sets the node's name, its IPs and where NodePorts answer.
func (s *Settings) setNode(kubeProxy, beeline *field.Path) field.ErrorList {
	var errs field.ErrorList
	var err error
	if s.NodeName, err = nodeName(s.KubeProxy.HostnameOverride); err != nil {
		errs = append(errs, field.Invalid(kubeProxy.Child("hostnameOverride"), s.KubeProxy.HostnameOverride, err.Error()))
	}
	for i, ip := range s.Beeline.NodeIPs {
		errs = append(errs, s.addNodeAddr(ip, beeline.Child("nodeIPs").Index(i))...)
	}
	errs = append(errs, s.setBindAddress(kubeProxy.Child("bindAddress"))...)
	errs = append(errs, s.setNodePorts(kubeProxy.Child("nodePortAddresses"))...)
	errs = append(errs, parsePrefixes(s.Beeline.ServiceClusterIPRanges, beeline.Child("serviceClusterIPRanges"), &s.ServiceRanges)...)
	return append(errs, s.setNodePortRange(beeline.Child("serviceNodePortRange"))...)
}

// setNodePortRange sets what NodePorts of manifests lie in. kube-apiserver parses its flag
// by the same function.
func (s *Settings) setNodePortRange(path *field.Path) field.ErrorList {
	value := s.Beeline.ServiceNodePortRange
	r, err := utilnet.ParsePortRange(value)
	if err != nil || r.Size == 0 || r.Base == 0 {
		return field.ErrorList{field.Invalid(path, value, "must be ports from 1 to 65535, such as 30000-32767, 30000+2767 or 30000")}
	}
	s.NodePortMin, s.NodePortMax = uint16(r.Base), uint16(r.Base+r.Size-1)
	return nil
}

// setNodePorts sets where NodePorts answer.
func (s *Settings) setNodePorts(path *field.Path) field.ErrorList {
	list := s.KubeProxy.NodePortAddresses
	var err error
	if s.NodePorts, err = policy.ParseNodePortAddresses(list); err == nil {
		return nil
	}
	var errs field.ErrorList
	for i, value := range list {
		if one, err := policy.ParseNodePortAddresses(list[i : i+1]); err != nil || one.Primary {
			errs = append(errs, field.Invalid(path.Index(i), value, `must be a CIDR, such as 10.0.0.0/16 or fd00::/64, or "primary" alone`))
		}
	}
	return errs
}

// setBindAddress takes bindAddress as the node's IP unless it is 0.0.0.0 or ::.
func (s *Settings) setBindAddress(path *field.Path) field.ErrorList {
	if ip, err := netip.ParseAddr(s.KubeProxy.BindAddress); err == nil && ip.IsUnspecified() {
		return nil
	}
	return s.addNodeAddr(s.KubeProxy.BindAddress, path)
}

// addNodeAddr adds an IP of the node.
func (s *Settings) addNodeAddr(ip string, path *field.Path) field.ErrorList {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() {
		return field.ErrorList{field.Invalid(path, ip, "must be an IP address")}
	}
	addr = addr.Unmap()
	for _, other := range s.NodeAddrs {
		if other == addr {
			return nil
		}
		if other.Is4() == addr.Is4() {
			return field.ErrorList{field.Invalid(path, ip, fmt.Sprintf("is the second IP of its family beside %s", other))}
		}
	}
	s.NodeAddrs = append(s.NodeAddrs, addr)
	return nil
}

// nodeName returns the name of the Node object: the host name in lower case
// unless given.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("must be given, there is no host name: %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", fmt.Errorf("must not be empty")
	}
	return name, nil
}

// setPods sets where pods are, and which clients are inside the cluster.
func (s *Settings) setPods(kubeProxy *field.Path) field.ErrorList {
	k := &s.KubeProxy
	var errs field.ErrorList
	if k.ClusterCIDR != "" {
		errs = parsePrefixes(strings.Split(k.ClusterCIDR, ","), kubeProxy.Child("clusterCIDR"), &s.PodRanges)
	}
	mode := kubeProxy.Child("detectLocalMode")
	switch k.DetectLocalMode {
	case LocalModeClusterCIDR: // PodRanges, which count in all modes
	case LocalModeNodeCIDR:
		s.Internal.OfNode = true
		if s.Beeline.Manifests != "" {
			errs = append(errs, field.Invalid(mode, k.DetectLocalMode, "needs the Node object of an API server: a folder of manifests has none"))
		}
	case LocalModeBridgeInterface:
		if s.Internal.Bridge = k.DetectLocal.BridgeInterface; s.Internal.Bridge == "" {
			errs = append(errs, field.Required(kubeProxy.Child("detectLocal", "bridgeInterface"), "names the bridge of the pods"))
		}
	case LocalModeInterfaceNamePrefix:
		if s.Internal.InterfacePrefix = k.DetectLocal.InterfaceNamePrefix; s.Internal.InterfacePrefix == "" {
			errs = append(errs, field.Required(kubeProxy.Child("detectLocal", "interfaceNamePrefix"), "starts the names of pods' devices"))
		}
	default:
		errs = append(errs, field.NotSupported(mode, k.DetectLocalMode,
			[]localMode{LocalModeClusterCIDR, LocalModeNodeCIDR, LocalModeBridgeInterface, LocalModeInterfaceNamePrefix}))
	}
	return errs
}

// parsePrefixes parses CIDRs; bits beyond the prefix are cleared, and IPv4 written as IPv6 (::ffff:10.0.0.0/112) is IPv4.
func parsePrefixes(list []string, path *field.Path, to *[]netip.Prefix) field.ErrorList {
	var errs field.ErrorList
	for i, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), s, "must be a CIDR, such as 10.0.0.0/16 or fd00::/64"))
			continue
		}
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		*to = append(*to, p.Masked())
	}
	return errs
}
