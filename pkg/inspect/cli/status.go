package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (c *command) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the agent, the attached programs, map fill and counters",
		Long: `Show the agent, the attached programs, the devices on which clients from outside
of the node are served and why those, how full the maps are, and how many
connections and packets were refused, dropped, served and passed, and why. -o wide
names the Services of which connections were refused.

While the agent is down, traffic is served from what it wrote last.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			status, err := read(c, (*inspect.Datapath).Status)
			if err != nil {
				return err
			}
			for i := range status.Maps {
				m := &status.Maps[i]
				m.Setting = cmp.Or(sizeFlags[m.Setting], m.Setting)
			}
			return c.print(status, func(wide bool) string { return statusText(status, c.Now(), wide) })
		},
	}
}

func statusText(s *inspect.Status, now time.Time, wide bool) string {
	parts := []string{agentText(s, now, wide), programText(s.Programs, wide), deviceText(s.Devices, wide) + faultText(s, now), mapText(s.Maps, wide), counterText(s.Counters)}
	if wide {
		parts = append(parts, refusalText(s.Refusals), addressText(s))
	}
	return strings.Join(parts, "\n")
}

func agentText(s *inspect.Status, now time.Time, wide bool) string {
	a := s.Agent
	t := newTable("Agent", agentState(a, now))
	t.add("Version", a.Version)
	t.add("Node", a.Node)
	t.add("Source", a.Source)
	t.add("Cgroup", a.Cgroup)
	t.add("Last sync", syncText(a, now))
	serving := fmt.Sprintf("%s (%s), %s, %s",
		inspect.Amount(s.Served.Services, "service"), inspect.Amount(s.Served.Ports, "port"),
		inspect.Amount(s.Served.Frontends, "frontend"), inspect.Amount(s.Served.Backends, "backend"))
	if s.UnreadServices() {
		serving = "what cannot be read: its tables have another layout"
	} else if s.Served.Limited > 0 {
		serving += fmt.Sprintf("; %s with less than asked for, see beeline_service_invalid_settings", inspect.Amount(s.Served.Limited, "service"))
	}
	t.add("Serving", serving)
	t.add("Flows", flowsText(&s.Flows, now))
	if s.Tunnel.Nodes > 0 {
		t.add("Tunnel", fmt.Sprintf("UDP port %d, to %d of %s that have endpoints for it", s.Tunnel.Port, s.Tunnel.Used, inspect.Amount(s.Tunnel.Asked, "node")))
	}
	if text := natText(s.NAT); text != "" {
		t.add("Sockets", text)
	}
	if s.Sandboxes > 0 {
		t.add("Sandboxes", fmt.Sprintf("packets of pods whose sockets the kernel does not see are served at %s", inspect.Amount(s.Sandboxes, "device")))
	}
	if a.KeepsSockets {
		t.add("UDP sockets", "stay connected to endpoints that are gone: the kernel cannot destroy them, the agent's log says why")
	}
	if wide {
		t.add("Pinned in", fmt.Sprintf("%s (schema %d)", s.Directory, s.Schema))
	}
	return t.String()
}

// natText says whose sockets are left to rules of their own, "" when there are none such.
func natText(n inspect.NAT) string {
	var parts []string
	if n.Left > 0 {
		parts = append(parts, fmt.Sprintf("left alone in %s with rules of nat OUTPUT, whose packets are served", inspect.Amount(n.Left, "network namespace")))
	}
	if n.Served > 0 {
		parts = append(parts, fmt.Sprintf("SERVED LIKE OTHERS in %s with such rules, whose devices cannot be: the agent's log names them", inspect.Amount(n.Served, "network namespace")))
	}
	return strings.Join(parts, "; ")
}

func flowsText(f *inspect.Flows, now time.Time) string {
	text := fmt.Sprintf("room for %s", inspect.Amount(f.Room, "connection"))
	if f.SizedBy != "" {
		text += ", by " + f.SizedBy
	}
	recent := cmp.Or(f.EvictedRecently, &inspect.EvictedRecently{})
	if f.EvictedHalfOpen > 0 {
		text += fmt.Sprintf("; %d half-open ones evicted%s", f.EvictedHalfOpen, rate(recent, recent.HalfOpen))
	}
	if f.EvictedEstablished > 0 {
		text += fmt.Sprintf("; %d ESTABLISHED ONES EVICTED%s, the last seen %s: raise --max-flows",
			f.EvictedEstablished, rate(recent, recent.Established), at(f.LastEvicted, now))
	}
	return text
}

// rate returns how many of n there were a second, "" when that is not known.
func rate(recent *inspect.EvictedRecently, n uint64) string {
	over := recent.To.Sub(recent.From)
	if over <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f a second in the last %s)", float64(n)/over.Seconds(), duration.HumanDuration(over))
}

func agentState(a inspect.Agent, now time.Time) string {
	process := ""
	if a.PID != 0 {
		process = fmt.Sprintf("pid %d", a.PID)
	}
	if !a.Started.IsZero() {
		process += ", started " + at(a.Started, now)
	}
	process = strings.TrimPrefix(process, ", ")
	switch {
	case a.Running && process == "":
		return "running"
	case a.Running:
		return "running, " + process
	case process == "":
		return "down, and none has run yet"
	}
	return "DOWN, traffic is served from its last state; last was " + process
}

// waitingLimit is longer than changes wait for a healthy agent to apply them, also on a busy node.
const waitingLimit = 5 * time.Second

func syncText(a inspect.Agent, now time.Time) string {
	if a.LastSync.IsZero() {
		return "never"
	}
	text := fmt.Sprintf("%s, %d since the start, %s pending", at(a.LastSync, now), a.Syncs, inspect.Amount(a.Pending, "service"))
	if wait := now.Sub(a.WaitingSince); !a.WaitingSince.IsZero() && wait >= waitingLimit {
		text += ", changes wait for " + duration.HumanDuration(wait)
	}
	return text
}

// at returns a time and how long ago it was.
func at(t, now time.Time) string {
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), duration.HumanDuration(max(0, now.Sub(t))))
}

func programText(programs []inspect.Program, wide bool) string {
	if len(programs) == 0 {
		return "No program is attached: connections to Services are not served.\n"
	}
	heading := []string{"PROGRAM", "ATTACHED-TO", "PROGRAM-ID", "TAG"}
	if wide {
		heading = append(heading, "LINK-ID", "CGROUP-ID")
	}
	t := newTable(heading...)
	for _, p := range programs {
		attach := p.Attach
		if p.CgroupID == 0 {
			attach += " (of a removed cgroup)"
		}
		row := []string{p.Name, attach, number(p.ProgramID), p.Tag}
		if wide {
			row = append(row, number(p.LinkID), number(p.CgroupID))
		}
		t.add(row...)
	}
	return t.String()
}

func deviceText(devices []inspect.Device, wide bool) string {
	if len(devices) == 0 {
		return "No device is attached to: only processes of this node are served.\n"
	}
	heading := []string{"DEVICE", "ATTACHED-BY", "XDP", "SOURCE", "REASON"}
	if wide {
		heading = append(heading, "IFINDEX", "ID")
	}
	t := newTable(heading...)
	for _, d := range devices {
		var addrs []string
		for _, a := range d.Addresses {
			addrs = append(addrs, a.String())
		}
		attach := d.Attach
		if attach == "" {
			attach = "NOT ATTACHED"
		}
		xdp := d.XDP
		if d.NoXDP != "" {
			xdp += ": " + d.NoXDP
		}
		if len(d.XDPBeside) > 0 {
			xdp += ", beside " + strings.Join(d.XDPBeside, ", ")
		}
		row := []string{d.Name, attach, xdp, strings.Join(addrs, ","), d.Reason}
		if wide {
			row = append(row, number(d.Ifindex), number(d.ID))
		}
		t.add(row...)
	}
	return t.String()
}

// faultText names the devices that are not served, "" when there are none.
func faultText(s *inspect.Status, now time.Time) string {
	if len(s.DeviceFaults) == 0 {
		return ""
	}
	t := newTable("DEVICE NOT SERVED", "FOR", "SINCE", "TRIES", "NEXT TRY", "ERROR")
	for _, f := range s.DeviceFaults {
		next := "when an agent runs"
		if s.Agent.Running {
			next = "in " + duration.HumanDuration(max(0, f.NextTry.Sub(now)))
		}
		t.add(orDash(f.Name), f.Role, at(f.Since, now), number(f.Tries), next, f.Error)
	}
	return "\n" + t.String()
}

func mapText(maps []inspect.Map, wide bool) string {
	t := newTable("MAP", "USED", "SIZE", "FILL", "MEMORY", "SETTING")
	var total uint64
	for _, m := range maps {
		total += m.MemoryBytes
		if m.Size != 0 {
			fill := fmt.Sprintf("%.1f%%", 100*float64(m.Used)/float64(m.Size))
			t.add(m.Name, number(m.Used), number(m.Size), fill, memory(m.MemoryBytes), m.Setting)
		} else if wide {
			t.add(m.Name, "", "", "", memory(m.MemoryBytes), "")
		}
	}
	t.add("all maps", "", "", "", memory(total), "")
	return t.String()
}

func counterText(counters []inspect.Counter) string {
	t := newTable("REASON", "COUNT", "EFFECT")
	for _, c := range counters {
		t.add(c.Reason, number(c.Count), c.Effect)
	}
	return t.String()
}

func refusalText(refusals []inspect.Refusal) string {
	if len(refusals) == 0 {
		return "No Service has refused a connection.\n"
	}
	t := newTable("SERVICE", "PORT", "FAMILY", "REFUSED")
	for _, r := range refusals {
		t.add(r.String(), fmt.Sprintf("%d/%s", r.Port, r.Protocol), r.Family, number(r.Count))
	}
	return t.String()
}

func addressText(s *inspect.Status) string {
	var nodePorts, cidrs []string
	for _, a := range s.NodeAddresses {
		text := a.Address.String()
		if a.HostOnly {
			text += " (host only)"
		}
		nodePorts = append(nodePorts, text)
	}
	for _, p := range s.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	t := newTable("NodePorts on", orDash(strings.Join(nodePorts, ", ")))
	t.add("Service ranges", strings.Join(cidrs, ", "))
	return t.String()
}
