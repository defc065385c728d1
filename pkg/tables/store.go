package tables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/setting"
)

// ErrFull says that a table has no room. Errors that wrap it name the table, its
// size and the setting; see [FullError].
var ErrFull = errors.New("table is full")

var _ setting.Error = (*FullError)(nil)

// FullError is a table that has no room for another entry.
type FullError struct {
	Table   string // the map's name
	Size    uint32 // entries it may hold
	Setting string // the field of the configuration that sets Size; "" when fixed
}

// Error names the table, its size and what to do.
func (e *FullError) Error() string {
	if e.Setting == "" {
		return fmt.Sprintf("map %s is full (%d entries)", e.Table, e.Size)
	}
	return fmt.Sprintf("map %s is full (%d entries): raise %s", e.Table, e.Size, e.Setting)
}

// Field returns Setting.
func (e *FullError) Field() string { return e.Setting }

// Unwrap makes errors.Is(err, ErrFull) true.
func (e *FullError) Unwrap() error { return ErrFull }

// Limit is how far a table may grow.
type Limit struct {
	Table   string
	Size    uint32
	Setting string
}

// Full returns the error for a table that has reached the limit.
func (l Limit) Full() error {
	return &FullError{Table: l.Table, Size: l.Size, Setting: l.Setting}
}

// Limits are those of the tables that grow with the Services.
type Limits struct {
	Services     Limit
	Backends     Limit
	Slots        Limit
	Frontends    Limit
	SourceRanges Limit
	Nodes        Limit // its Size counts the id 0, too, which is never used
	NodeIDs      Limit
}

// Store holds the entries: the kernel's maps, or a fake in tests. It is written by one
// goroutine; only Barrier may run beside the other methods.
//
// A write that returns an error has left the entry as it was.
type Store interface {
	Limits() Limits
	// Reserve makes room ahead for at least so many entries in all, as far as the
	// limits allow: making it step by step takes longer.
	Reserve(services, backends, slots uint32) error

	PutServiceName(id uint32, name ServiceName) error
	ClearServiceName(id uint32) error
	// PutService replaces each set by one store. Readers may see the new cluster
	// set beside the old local set.
	PutService(id uint32, service Service) error

	// PutBackend writes address and Service of an id that no reader knows, or
	// State, Node and Generation, together by one store, and Weight of any id.
	PutBackend(id uint32, backend Backend) error
	// Generation of the id's last user; 0 when never used.
	Generation(id uint32) uint32
	// PutSlots writes a run that no reader knows.
	PutSlots(first uint32, backends []uint32) error

	PutFrontend(key FrontendKey, frontend Frontend) error
	DeleteFrontend(key FrontendKey) error
	PutSourceRange(r SourceRange) error
	DeleteSourceRange(r SourceRange) error
	PutServiceCIDR(p netip.Prefix) error
	DeleteServiceCIDR(p netip.Prefix) error
	// PutForeign lets packets to an address in a Service CIDR pass.
	PutForeign(addr netip.Addr) error
	DeleteForeign(addr netip.Addr) error
	PutNodeAddr(addr netip.Addr, a NodeAddr) error
	DeleteNodeAddr(addr netip.Addr) error
	// PutNode writes an id that no reader knows, or Name and Self of any id.
	PutNode(id uint16, n Node) error
	ClearNode(id uint16) error
	// PutNodeID lets packets from an address of a node in.
	PutNodeID(addr netip.Addr, id uint16) error
	DeleteNodeID(addr netip.Addr) error

	// Barrier returns when every program that was running when it was called has
	// ended.
	Barrier() error
}

// Snapshot is the content of a [Store], in the order of ids.
type Snapshot struct {
	Names        map[uint32]ServiceName
	Services     map[uint32]Service
	Backends     map[uint32]Backend // those with a State
	Slots        func(Set) []uint32
	Frontends    map[FrontendKey]Frontend
	SourceRanges []SourceRange
	ServiceCIDRs []netip.Prefix
	Foreign      []netip.Addr
	NodeAddrs    map[netip.Addr]NodeAddr
	Nodes        map[uint16]Node
	NodeIDs      map[netip.Addr]uint16
}
