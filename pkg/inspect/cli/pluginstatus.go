package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (p *plugin) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the agents, devices, map fill and refusals of all nodes",
		Long: `Show a row for each node: the agent and its last sync, how many Services are not
synced (PENDING), the devices on which clients from outside of the node are served,
established connections that were evicted from the full flow table, the map with the
least room, and how many connections and packets were refused and dropped. -o wide adds
the source of Services, the attached programs and the tunnel. All that a node says:

  kubectl -n kube-system exec POD -- beeline status`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answers, err := askNodes[inspect.Status](cmd.Context(), p, "status")
			if err != nil {
				return err
			}
			return merge(p, answers, func(answers []answer[inspect.Status], wide bool) string {
				return nodesText(answers, p.Now(), wide)
			})
		},
	}
	p.addNodeFlags(cmd, 20*time.Second)
	return cmd
}

func nodesText(answers []answer[inspect.Status], now time.Time, wide bool) string {
	heading := []string{"NODE", "AGENT", "VERSION", "LAST-SYNC", "PENDING", "SERVICES", "DEVICES", "EVICTED", "FULLEST-MAP", "REFUSED", "DROPPED"}
	if wide {
		heading = append(heading, "SOURCE", "PROGRAMS", "TUNNEL")
	}
	t := newTable(heading...)
	for _, a := range answers {
		s := &a.value
		agent := "DOWN"
		if s.Agent.Running {
			agent = "running"
		}
		synced := "never"
		if !s.Agent.LastSync.IsZero() {
			synced = duration.HumanDuration(max(0, now.Sub(s.Agent.LastSync))) + " ago"
		}
		row := []string{a.node, agent, s.Agent.Version, synced, number(s.Agent.Pending), number(s.Served.Services), devicesCell(s),
			number(s.Flows.EvictedEstablished), fullestMap(s), counted(s, "refused"), counted(s, "dropped")}
		if wide {
			row = append(row, s.Agent.Source, number(len(s.Programs)), tunnelCell(s.Tunnel))
		}
		t.add(row...)
	}
	return t.String()
}

// devicesCell says how many devices are served, and how many are not that are to be.
func devicesCell(s *inspect.Status) string {
	faulty := len(s.DeviceFaults)
	for _, d := range s.Devices {
		if d.Attach == "" {
			faulty++
		}
	}
	if faulty > 0 {
		return fmt.Sprintf("%d, %d NOT SERVED", len(s.Devices), faulty)
	}
	return number(len(s.Devices))
}

// fullestMap names the map with the least room, of those that can fill up.
func fullestMap(s *inspect.Status) string {
	return fullestMaps(slices.DeleteFunc(slices.Clone(s.Maps), func(m inspect.Map) bool { return m.Size == 0 }), 1)
}

// counted returns the sum of the counters of an effect.
func counted(s *inspect.Status, effect string) string {
	var n uint64
	for _, c := range s.Counters {
		if c.Effect == effect {
			n += c.Count
		}
	}
	return number(n)
}

// tunnelCell says to how many nodes the tunnel leads, of those that have endpoints for it.
func tunnelCell(t inspect.Tunnel) string {
	if t.Nodes == 0 {
		return "off"
	}
	return fmt.Sprintf("%d/%d", t.Used, t.Asked)
}
