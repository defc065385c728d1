package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// sample is what an agent and its maps take between two disturbances.
type sample struct {
	pid                     int
	memory, maps            float64 // MiB: the process's anonymous memory, the kernel's for the maps
	descriptors, goroutines float64
	mended                  float64 // differences between the tables and the kernel since the agent's start
}

// sampleAgents takes a sample of each agent. One that had to mend something is a fault.
func (s *soakRun) sampleAgents(ctx context.Context) error {
	for _, n := range s.nodes {
		name := nodeName(n.index)
		var now sample
		err := s.await(ctx, "figures of the agent of "+name, func() (err error) {
			now, err = s.sampleAgent(ctx, n)
			return err
		})
		if err != nil {
			return err
		}
		if before := s.samples[name]; now.mended > 0 && (len(before) == 0 || before[len(before)-1].mended != now.mended) {
			s.fault("the agent of %s has mended %.0f differences", name, now.mended)
		}
		s.samples[name] = append(s.samples[name], now)
	}
	return nil
}

func (s *soakRun) sampleAgent(ctx context.Context, n *node) (now sample, err error) {
	if now.pid, err = agentPID(n); err != nil {
		return now, err
	}
	if now.memory, err = anonymousMemory(now.pid); err != nil {
		return now, err
	}
	metrics, err := agentMetrics(n, "process_open_fds", "go_goroutines", "beeline_verify_findings_total")
	if err != nil {
		return now, err
	}
	now.descriptors, now.goroutines, now.mended = metrics[0], metrics[1], metrics[2]
	out, err := s.beeline(ctx, n, "status", "-o", "json")
	if err != nil {
		return now, err
	}
	var status inspect.Status
	if err := json.Unmarshal(out, &status); err != nil {
		return now, err
	}
	for _, m := range status.Maps {
		now.maps += float64(m.MemoryBytes) / (1 << 20)
	}
	return now, nil
}

// anonymousMemory returns the memory of a process that is not of files and maps, in MiB.
func anonymousMemory(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")), 64)
			return n / 1024, err
		}
	}
	return 0, errors.New("no RssAnon in its status: the process is ending")
}

// agentMetrics returns some of an agent's metrics, each the sum of its series.
func agentMetrics(n *node, names ...string) ([]float64, error) {
	resp, err := prober.Get(agentURL(n, 10249) + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return sumMetrics(resp.Body, names)
}

func sumMetrics(page io.Reader, names []string) ([]float64, error) {
	sums, found := make([]float64, len(names)), make([]bool, len(names))
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ := strings.Cut(series, "{")
		i := slices.Index(names, name)
		if i < 0 {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		sums[i], found[i] = sums[i]+v, true
	}
	if i := slices.Index(found, false); i >= 0 {
		return nil, fmt.Errorf("no metric %s", names[i])
	}
	return sums, lines.Err()
}

// lastSamples tells of the agents, in the order of the nodes.
func (s *soakRun) lastSamples() string {
	var memory, descriptors, goroutines []string
	for _, n := range s.nodes {
		all := s.samples[nodeName(n.index)]
		last := all[len(all)-1]
		memory = append(memory, fmt.Sprintf("%.0f", last.memory))
		descriptors = append(descriptors, fmt.Sprintf("%.0f", last.descriptors))
		goroutines = append(goroutines, fmt.Sprintf("%.0f", last.goroutines))
	}
	return fmt.Sprintf("agents: %s MiB, %s descriptors, %s goroutines",
		strings.Join(memory, "/"), strings.Join(descriptors, "/"), strings.Join(goroutines, "/"))
}

// levels are the figures that must not grow, with what they may beyond a fifth.
var levels = []struct {
	name  string
	of    func(sample) float64
	slack float64
	// agent is set for what begins anew with each process.
	agent bool
}{
	{"agent's memory, MiB", func(s sample) float64 { return s.memory }, 5, true},
	{"agent's file descriptors", func(s sample) float64 { return s.descriptors }, 16, true},
	{"agent's goroutines", func(s sample) float64 { return s.goroutines }, 16, true},
	{"maps, MiB", func(s sample) float64 { return s.maps }, 1, false},
}

// leastSamples is from how many on they are judged.
const leastSamples = 8

// level is how a figure was in the second quarter of its samples and in the last.
type level struct {
	node, name   string
	samples      int
	second, last float64
	verdict      string
}

// judgeLevels compares the last quarter of the samples with the second: in the first, memory
// grows to what is needed. Those of an agent are of its latest process.
func (s *soakRun) judgeLevels() {
	for _, n := range s.nodes {
		all := s.samples[nodeName(n.index)]
		if len(all) == 0 {
			continue
		}
		latest := all[slices.IndexFunc(all, func(one sample) bool { return one.pid == all[len(all)-1].pid }):]
		for _, l := range levels {
			of := all
			if l.agent {
				of = latest
			}
			var values []float64
			for _, one := range of {
				values = append(values, l.of(one))
			}
			judged := judgeLevel(values, l.slack)
			judged.node, judged.name = nodeName(n.index), l.name
			s.report.levels = append(s.report.levels, judged)
			if judged.verdict == levelGrown {
				s.fault("%s: %s has grown from %.1f to %.1f", judged.node, judged.name, judged.second, judged.last)
			}
		}
	}
}

// The verdicts on a level.
const (
	levelKept   = "level"
	levelGrown  = "**grown**"
	levelTooFew = "too few samples"
)

func judgeLevel(values []float64, slack float64) level {
	quarter := len(values) / 4
	l := level{samples: len(values), verdict: levelTooFew}
	if len(values) == 0 {
		return l
	}
	l.second, l.last = median(values[quarter:max(2*quarter, quarter+1)]), median(values[len(values)-max(quarter, 1):])
	switch {
	case len(values) < leastSamples:
	case l.last <= 1.2*l.second+slack:
		l.verdict = levelKept
	default:
		l.verdict = levelGrown
	}
	return l
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
