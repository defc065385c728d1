package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// An agent of another version may have pinned tables in a layout that this one does not know.
// Each reading needs the tables that it is about, and is an error without them; what it adds from
// others is left out. Nothing is written, and no program is asked, unless all layouts are known.

// serviceTables say which Services are served.
var serviceTables = []string{
	bpf.SockMapBlService, bpf.SockMapBlServiceName, bpf.SockMapBlFrontend, bpf.SockMapBlBackend, bpf.SockMapBlSlot, bpf.SockMapBlSrcrange,
}

var flowTables = []string{bpf.SockMapBlFlow, bpf.SockMapBlOverflow}

// UnreadTable is a table that another version has pinned in a layout that this one cannot read.
type UnreadTable struct {
	Map string `json:"map"`
	Why string `json:"why"` // what is pinned in its place
}

// UnreadError are tables that keep from a task, for they have another layout. It is a [bpfmap.ErrOtherVersion].
type UnreadError struct {
	Tables []UnreadTable
	Agent  string // the version that has pinned them; "": not known
}

// Error names the tables and says what to do.
func (e *UnreadError) Error() string {
	list := make([]string, len(e.Tables))
	for i, t := range e.Tables {
		list[i] = fmt.Sprintf("%s (%s)", t.Map, t.Why)
	}
	agent := "the agent's version"
	if e.Agent != "" {
		agent += ", " + e.Agent
	}
	return fmt.Sprintf("%s: %v in another layout; use the beeline command of %s",
		strings.Join(list, ", "), bpfmap.ErrOtherVersion, agent)
}

// Unwrap makes errors.Is(err, bpfmap.ErrOtherVersion) true.
func (e *UnreadError) Unwrap() error { return bpfmap.ErrOtherVersion }

// Unread returns the tables that cannot be read.
func (d *Datapath) Unread() (list []UnreadTable) {
	for _, o := range d.maps.OtherLayouts() {
		if !o.Read {
			list = append(list, UnreadTable{o.Map, o.Why})
		}
	}
	return list
}

// UnreadError returns an [UnreadError] of all tables that cannot be read, nil when there are none.
func (d *Datapath) UnreadError() error { return d.unreadError(d.Unread()) }

func (d *Datapath) unreadError(list []UnreadTable) error {
	if len(list) == 0 {
		return nil
	}
	return &UnreadError{list, statusmap.New(d.maps).Agent().Version}
}

// need returns an [UnreadError] of those among some tables that cannot be read.
func (d *Datapath) need(tables ...string) error {
	return d.unreadError(slices.DeleteFunc(d.Unread(), func(t UnreadTable) bool { return !slices.Contains(tables, t.Map) }))
}

// needAll returns an [UnreadError] when a table has another layout, be it one that can be read.
func (d *Datapath) needAll() error {
	var list []UnreadTable
	for _, o := range d.maps.OtherLayouts() {
		list = append(list, UnreadTable{o.Map, o.Why})
	}
	return d.unreadError(list)
}

// UnreadServices reports whether it is not known which Services are served.
func (s *Status) UnreadServices() bool {
	return slices.ContainsFunc(s.Unread, func(t UnreadTable) bool { return slices.Contains(serviceTables, t.Map) })
}
