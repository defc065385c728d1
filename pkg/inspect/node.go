package inspect

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// Node is a node of the cluster, as direct server return knows it. There are none while no
// Service asks for that.
type Node struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"` // where the tunnel to it ends
	ID      uint16     `json:"id"`      // index in bl_node
	Self    bool       `json:"self,omitempty"`
	// Tunnel says that packets to backends on it go in the tunnel, else by SNAT.
	Tunnel bool `json:"tunnel"`
	// Answer is not asked, asked, accepts, refuses or unreachable; Reason says it in words.
	Answer string `json:"answer"`
	Reason string `json:"reason"`
}

// Nodes returns the nodes of the cluster, by id.
func (d *Datapath) Nodes() ([]Node, error) {
	if err := d.need(bpf.SockMapBlNode, bpf.SockMapBlNodeName); err != nil {
		return nil, err
	}
	return d.nodes()
}

func (d *Datapath) nodes() ([]Node, error) {
	known, err := nodemap.New(d.maps).List()
	if err != nil {
		return nil, err
	}
	list := make([]Node, 0, len(known))
	for _, n := range known {
		list = append(list, Node{n.Name, n.Addr, n.ID, n.Self, n.Tunnel, n.Answer.String(), nodeReason(n)})
	}
	return list, nil
}

// nodeReason says why the tunnel to a node is used or not.
func nodeReason(n nodemap.Node) string {
	if n.Self {
		return "this node"
	}
	switch n.Answer {
	case nodemap.NotAsked:
		return "not asked: no endpoint for the tunnel is on it"
	case nodemap.Asked:
		return "asked, no answer yet"
	case nodemap.Accepts:
		return "accepts tunnel traffic"
	case nodemap.Refuses:
		return "accepts none by the device where it was asked, or is of another version"
	case nodemap.Unreachable:
		return "no answer: Beeline is not there, in another mode, or the port is blocked"
	}
	return n.Answer.String()
}

// Tunnel counts the nodes of the cluster, but this one.
type Tunnel struct {
	Port  uint16 `json:"port"` // UDP; 0: this node takes no part
	Nodes int    `json:"nodes"`
	// Asked have endpoints for the tunnel, Used accept tunnel traffic.
	Asked int `json:"asked"`
	Used  int `json:"used"`
}

func (d *Datapath) tunnel() (t Tunnel, err error) {
	known, err := nodemap.New(d.maps).List()
	if err != nil {
		return t, err
	}
	t.Port = statusmap.New(d.maps).Agent().TunnelPort
	for _, n := range known {
		if n.Self {
			continue
		}
		t.Nodes++
		if n.Answer != nodemap.NotAsked {
			t.Asked++
		}
		if n.Tunnel {
			t.Used++
		}
	}
	return t, nil
}
