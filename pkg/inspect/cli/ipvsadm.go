package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// formatIPVSAdm is a format of Services: as "ipvsadm -Ln" prints virtual servers.
const formatIPVSAdm format = "ipvsadm"

var serviceFormats = append(slices.Clone(formats), string(formatIPVSAdm))

// serviceFormat is a [format] of a list of Services.
type serviceFormat struct{ *format }

// Set parses the flag.
func (f serviceFormat) Set(s string) error { return f.set(s, serviceFormats) }

// virtualServers returns each frontend of the Services with the backends that its clients get:
// those inside of the cluster for a ClusterIP, else those outside.
func virtualServers(services []inspect.Service) string {
	var out strings.Builder
	out.WriteString("Prot LocalAddress:Port Scheduler Flags\n")
	fmt.Fprintf(&out, "  -> %-28s Forward Weight ActiveConn InActConn\n", "RemoteAddress:Port")
	for _, s := range services {
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				if !f.IsAddress() {
					virtualServer(&out, s, p, f)
				}
			}
		}
	}
	return out.String()
}

func virtualServer(out *strings.Builder, s inspect.Service, p inspect.Port, f inspect.Frontend) {
	fmt.Fprintf(out, "%-4s %s %s", f.Protocol, netip.AddrPortFrom(f.Address, f.Port), scheduler(p.Algorithm))
	if s.AffinitySeconds != 0 {
		fmt.Fprintf(out, " persistent %d", s.AffinitySeconds)
	}
	out.WriteString("\n")
	policy := f.External
	if f.Kind == "ClusterIP" {
		policy = f.Internal
	}
	set := p.Cluster
	if policy == "local" {
		set = p.Local
	}
	for _, b := range p.Backends {
		if slices.Contains(set.Backends, b.ID) {
			fmt.Fprintf(out, "  -> %-28s %-7s %-6d %-10s -\n", netip.AddrPortFrom(b.Address, b.TargetPort), forward(p, b), b.Weight, active(b))
		}
	}
}

// scheduler returns the name that IPVS has for an algorithm.
func scheduler(algorithm string) string {
	if algorithm == "maglev" {
		return "mh"
	}
	return algorithm
}

// forward returns what IPVS calls the way of a packet to a backend.
func forward(p inspect.Port, b inspect.Backend) string {
	if p.Forwarding == "dsr" && !b.OnNode {
		return "Tunnel"
	}
	return "Masq"
}
