package bpfmap

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Entries are maps of one entry, or of a fixed number of them, in the agent's memory. They can
// be written unless the maps were opened for reading.
type Entries struct {
	Agent      *bpf.SockBlAgentEntry
	Aggregate  *bpf.SockBlAggregateEntry
	Filter     *bpf.SockBlFilterEntry
	Node       *[bpf.SockBlNodeLimitBL_NODE_MAX]bpf.SockBlNodeEntry // see NodeMu
	Secret     *bpf.SockBlSecretEntry
	SourcePort *bpf.SockBlSourcePortEntry
	// SourceShare is written by the programs, too.
	SourceShare *bpf.SockBlSourceShareEntry
	Tracking    *bpf.SockBlTrackingEntry
	// HalfOpen is written by the programs, too, and also over maps that were opened for
	// reading: who removes flows counts them there, whatever else is left as it is.
	HalfOpen *bpf.SockBlHalfOpenEntry
	// Monitor is written by the programs and by who listens to their events, whose maps were
	// opened for reading; see pkg/monitor.
	Monitor *bpf.SockBlMonitorEntry
	Config  *ConfigEntry
}

// mapEntries maps the memory of the entries.
func (m *Maps) mapEntries() error {
	e, readOnly := &m.Entries, m.readOnly
	return errors.Join(
		mapEntry(m, &e.Agent, m.BlAgent, readOnly),
		mapEntry(m, &e.Aggregate, m.BlAggregate, readOnly),
		mapEntry(m, &e.Filter, m.BlFilter, readOnly),
		mapEntry(m, &e.Node, m.BlNode, readOnly),
		mapEntry(m, &e.Secret, m.BlSecret, readOnly),
		mapEntry(m, &e.SourcePort, m.BlSourcePort, readOnly),
		mapEntry(m, &e.SourceShare, m.BlSourceShare, readOnly),
		mapEntry(m, &e.Tracking, m.BlTracking, readOnly),
		mapEntry(m, &e.HalfOpen, m.BlHalfOpen, false),
		mapEntry(m, &e.Monitor, m.BlMonitor, false),
		mapEntry(m, &e.Config, m.AgentMaps.Config, readOnly),
	)
}

// mapEntry maps a map into memory. T is all of it.
func mapEntry[T any](m *Maps, entry **T, kernelMap *ebpf.Map, readOnly bool) error {
	prot := unix.PROT_READ
	if !readOnly {
		prot |= unix.PROT_WRITE
	}
	size := max(int(kernelMap.ValueSize()*kernelMap.MaxEntries()), os.Getpagesize())
	mem, err := unix.Mmap(kernelMap.FD(), 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("%s: map into memory: %w", kernelMap, err)
	}
	*entry = (*T)(unsafe.Pointer(&mem[0]))
	m.mapped = append(m.mapped, mem)
	return nil
}

// unmapEntries is the opposite of mapEntries; entries must not be used afterwards.
func (m *Maps) unmapEntries() error {
	var errs []error
	for _, mem := range m.mapped {
		errs = append(errs, unix.Munmap(mem))
	}
	m.mapped, m.Entries = nil, Entries{}
	return errors.Join(errs...)
}
