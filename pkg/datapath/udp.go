package datapath

import "github.com/beeline-lb/beeline/pkg/bpfmap"

// UDPService is [bpfmap.UDPService].
func (d *Datapath) UDPService(s bpfmap.UDPSocket) (uint32, bool, error) {
	return bpfmap.UDPService(d.sockets["bl_udp_service"], s)
}
