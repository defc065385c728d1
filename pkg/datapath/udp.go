package datapath

import "github.com/beeline-lb/beeline/pkg/bpf"

// UDPService is [bpf.UDPService].
func (d *Datapath) UDPService(s bpf.UDPSocket) (uint32, bool, error) {
	return bpf.UDPService(d.sockets.BlUdpService, s)
}
