package inspect

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// path tells how the connection gets to the backend.
func (x *Explanation) path(d *Datapath, c *client) error {
	a := x.answer
	if c.kind == clientSocket {
		x.Path = &ExplainedPath{Hook: "socket", Forwarding: "none"}
		x.Path.leaves(c.ownRoute(x.Chosen.Address))
		x.say("path", "socket: connect(), or sendmsg() of UDP, goes to the backend itself, and no packet is translated%s", x.Path.by())
		return nil
	}
	devices, err := devicemap.New(d.maps).List()
	if err != nil {
		return err
	}
	x.Path = &ExplainedPath{Hook: "tc", Forwarding: "none", Source: c.from}
	x.Path.Source = netip.AddrPortFrom(a.ToSrc.Netip(), bpf.Hton16(a.ToSrcPort))
	at := slices.IndexFunc(devices, func(v devicemap.Device) bool { return v.ID == uint32(a.Device) })
	var sent devicemap.Device // by which the program sends the packet on, if it does
	if at >= 0 {
		sent = devices[at]
		x.Path.leaves(c.sentRoute(x.Chosen.Address, x.Path.Source.Addr(), sent.Ifindex))
		x.Path.Device = sent.Name
	}
	snat := uint32(a.FlowBits)&uint32(bpf.SockBlFlowBitsBL_FLOW_SNAT) != 0
	switch {
	case a.Node != 0:
		return x.tunnelPath(d, c, sent)
	case snat && uint32(a.Device) == uint32(bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN):
		x.Path.Forwarding, x.Path.Device = "snat", x.Client.Device
		x.say("path", "tc: back to this node as the packet leaves, SNAT, the backend sees %s", x.Path.Source)
	case snat:
		x.Path.Forwarding = "snat"
		if at < 0 {
			if err := x.stackPath(d, c); err != nil {
				return err
			}
		}
		x.taken(c, sent.XDPSend)
		x.say("path", "%s: SNAT, the backend sees %s%s", x.Path.Hook, x.Path.Source, x.Path.by())
	case a.Has(bpf.SockBlExplainStepBL_EXPLAIN_BACK):
		x.Path.Device = x.Client.Device
		x.say("path", "tc: back to the pod itself, which sees %s", x.Path.Source)
	case c.kind == clientNode:
		x.say("path", "tc: translated as the packet leaves, the backend sees the client, %s%s", x.Path.Source, x.Path.by())
	case x.Chosen.Address.IsLoopback():
		x.Verdict, x.Reason = VerdictDropped, ReasonMartianDestination
		x.say("path", "tc: the host's stack takes the packet on and drops it: %s can be reached by processes of this host alone", x.Chosen.Address)
	default:
		if err := x.stackPath(d, c); err != nil {
			return err
		}
		if setting := x.notForwarded(); setting != "" {
			x.Verdict, x.Reason = VerdictDropped, ReasonNotForwarded
			x.say("path", "tc: the host's stack is to forward the packet%s, and drops it: %s is 0", x.Path.by(), setting)
			return nil
		}
		x.say("path", "tc: the host's stack takes the packet on, the backend sees the client, %s%s", x.Path.Source, x.Path.by())
	}
	return nil
}

// stackPath notes the route by which the host's stack takes a translated packet on.
func (x *Explanation) stackPath(d *Datapath, c *client) error {
	mark := uint32(0)
	if c.kind == clientPacket {
		var err error
		if mark, err = datapath.ForwardMark(d.bpffs); err != nil {
			return err
		}
	}
	x.Path.leaves(c.stackRoute(x.Chosen.Address, mark))
	return nil
}

// notForwarded returns the setting by which the kernel forwards no packet of the client to the backend, or
// none back; "" when it does, or the backend is this host.
func (x *Explanation) notForwarded() string {
	if x.Path.Device == "" || x.Path.Device == "lo" {
		return ""
	}
	for _, device := range []string{x.Client.Device, x.Path.Device} {
		family := "ipv4"
		if x.Chosen.Address.Is6() {
			if netns.ForcesForwarding(device) {
				continue
			}
			family, device = "ipv6", "all"
		}
		name, sysctl := netns.OfDevice(family, device, "forwarding")
		if value, found, _ := netns.Setting(name); found && value == 0 {
			return sysctl
		}
	}
	return ""
}

// tunnelPath tells of a packet that goes on to another node as it is.
func (x *Explanation) tunnelPath(d *Datapath, c *client, device devicemap.Device) error {
	nodes, err := nodemap.New(d.maps).List()
	if err != nil {
		return err
	}
	x.Path.Forwarding, x.Path.Source, x.Path.Device = "dsr", c.from, device.Name
	text := fmt.Sprintf("node %d", x.answer.Node)
	for _, n := range nodes {
		if n.ID == x.answer.Node {
			x.Path.Node, text = n.Name, fmt.Sprintf("%s, %s", n.Name, n.Addr)
			x.Path.leaves(c.sentRoute(n.Addr, netip.Addr{}, device.Ifindex))
			x.Path.Device = device.Name
		}
	}
	x.taken(c, true)
	x.say("path", "%s: in the tunnel to node %s, which answers the client itself; the backend sees %s%s", x.Path.Hook, text, x.Path.Source, x.Path.by())
	return nil
}

// taken notes by which program the packet is sent on: XDP where the client's device has it and it can
// send. The counter is another one then.
func (x *Explanation) taken(c *client, sends bool) {
	if c.kind != clientPacket || c.device == nil || !sends || c.device.XDP != string(datapath.XDPNative) && (c.device.XDP != string(datapath.XDPGeneric) || x.answer.Node != 0) {
		return
	}
	x.Path.Hook = "xdp"
	translated := statusmap.ReasonName(bpf.SockBlReasonBL_REASON_PACKET_TRANSLATED)
	x.Counters = slices.DeleteFunc(x.Counters, func(name string) bool { return name == translated })
	x.Counters = append(x.Counters, statusmap.ReasonName(bpf.SockBlReasonBL_REASON_XDP_SENT))
}

// leaves notes a route.
func (p *ExplainedPath) leaves(r route) { p.Device, p.Gateway = r.device, r.gateway }

// by says by which device and gateway.
func (p *ExplainedPath) by() string {
	text := ""
	if p.Device != "" {
		text = ", by " + p.Device
	}
	if p.Gateway.IsValid() {
		text += " via " + p.Gateway.String()
	}
	return text
}
