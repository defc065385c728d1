package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// Max is how many may listen at once.
const Max = int(bpf.SockBlMonitorLimitsBL_MONITORS)

// lease is how long a place is kept that is not renewed, which it is at each renewal: a process may
// have to wait for a busy machine.
const (
	lease   = 10 * time.Second
	renewal = time.Second
)

// unit is that of leases.
const unit = time.Duration(1) << bpf.SockBlMonitorLimitsBL_MONITOR_SHIFT

// defaultBuffer is some 6,900 events.
const defaultBuffer = 1 << 20

// DefaultStall is how long what was read may take to be shown.
const DefaultStall = time.Minute

// ErrBusy says that as many listen as may.
var ErrBusy = fmt.Errorf("%d listen to events already, which is as many as may: \"pgrep -a beeline\" on the node shows them; "+
	"one that kubectl exec without -it began goes on when that has ended, until it is killed", Max)

// ErrLost says that another listener has taken the place of this one, whose process had stood
// still for longer than its place was kept.
var ErrLost = errors.New("the process stood still, and another listener has taken its place")

// ErrStalled says that the listener has given up its place, for nothing was read for too long.
var ErrStalled = errors.New("its output was not read for too long, so it has stopped listening, and others may")

// ErrClosed says that the listener has been interrupted.
var ErrClosed = ringbuf.ErrClosed

// Options say what is listened to.
type Options struct {
	Kinds  []bpf.SockBlEventKind // none: all
	Rate   int                   // events in each 2^30 ns (1.07 s) at most, of all CPUs
	Sample int                   // of so many connections one is told, with all its events; 0 and 1: all
	Filter Filter                // see [Listener.Choose]
	Buffer int                   // bytes of events that wait to be read; 0: 1 MiB
	// Stall is how long may pass from the end of a [Listener.Read] to the next: whoever writes to what nobody reads
	// would keep the place for good. 0 is [DefaultStall].
	Stall time.Duration
}

// Listener listens to events.
type Listener struct {
	maps   *bpfmap.Maps // of who listens
	place  int
	ring   *ebpf.Map
	reader *ringbuf.Reader
	record ringbuf.Record

	token  uint32                // tells this listener from another one at the place
	until  uint64                // as in the place; the renewing goroutine's until that has ended
	gone   atomic.Pointer[error] // why the place is not its own any more
	stall  time.Duration
	begun  time.Time
	read   atomic.Int64 // when the last Read has ended, ns since begun; 0: one waits, or there was none
	cancel context.CancelFunc
	renews sync.WaitGroup
}

// Listen begins to listen at maps, which may be closed then. The error is [ErrBusy] when no place is free.
func Listen(maps *bpfmap.Maps, o Options) (*Listener, error) {
	size := o.Buffer
	if size == 0 {
		size = defaultBuffer
	}
	ring, err := ebpf.NewMap(bpfmap.RingSpec(uint32(size)))
	if err != nil {
		return nil, fmt.Errorf("make a ring for events: %w", err)
	}
	reader, err := ringbuf.NewReader(ring)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read a ring of events: %w", err), ring.Close())
	}
	own, err := maps.OnlyMonitor()
	if err != nil {
		return nil, errors.Join(err, reader.Close(), ring.Close())
	}
	l := &Listener{maps: own, ring: ring, reader: reader, token: rand.Uint32(), stall: cmp.Or(o.Stall, DefaultStall), begun: time.Now()}
	if err := l.begin(o); err != nil {
		return nil, errors.Join(err, reader.Close(), ring.Close(), own.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.renews.Go(func() { l.renew(ctx) })
	return l, nil
}

// begin takes a place and has the programs tell events there.
func (l *Listener) begin(o Options) error {
	if err := l.take(); err != nil {
		return err
	}
	err := l.maps.BlMonitorCpu.Put(uint32(l.place), make([]bpf.SockBlMonitorCpuEntry, ebpf.MustPossibleCPU()))
	if err == nil {
		err = l.maps.BlMonitorRing.Put(uint32(l.place), l.ring)
	}
	if err != nil {
		l.leave()
		return fmt.Errorf("listen at place %d: %w", l.place, err)
	}
	at := l.at()
	at.Kinds, at.Sample = kindBits(o.Kinds), uint32(max(o.Sample, 1))
	at.Limit = uint32(max(o.Rate, 1))
	at.Slice, at.Taken = 0, 0
	l.Choose(o.Filter)
	l.show()
	return nil
}

// kindBits returns kinds as the programs read them.
func kindBits(kinds []bpf.SockBlEventKind) uint32 {
	if len(kinds) == 0 {
		return ^uint32(0)
	}
	var set uint32
	for _, k := range kinds {
		set |= 1 << k
	}
	return set
}

func (l *Listener) at() *bpf.SockBlMonitorListener {
	return &l.maps.Entries.Monitor.Listener[l.place]
}

// term returns the time in units, and the word of a place that is kept for a while.
func (l *Listener) term() (now, until uint64, err error) {
	clock, err := bpf.Clock()
	return uint64(clock / unit), uint64((clock+lease)/unit)<<32 | uint64(l.token), err
}

// take finds a place that nobody has, or whose listener has not renewed it.
func (l *Listener) take() error {
	now, next, err := l.term()
	if err != nil {
		return err
	}
	for l.place = range Max {
		until := &l.at().Until
		former := atomic.LoadUint64(until)
		if former>>32 < now && atomic.CompareAndSwapUint64(until, former, next) {
			l.until = next
			return nil
		}
	}
	return ErrBusy
}

// show has the programs tell events at the place.
func (l *Listener) show() {
	atomic.OrUint64(&l.maps.Entries.Monitor.Listening, 1<<l.place)
}

// renew keeps the place until ctx ends, another has it, or nothing is read.
func (l *Listener) renew(ctx context.Context) {
	for pause.For(ctx, renewal) {
		if read := time.Duration(l.read.Load()); read != 0 && time.Since(l.begun)-read > l.stall {
			l.gone.Store(&ErrStalled)
			l.leave()
			l.Interrupt() // the reader tells why
			return
		}
		_, next, err := l.term()
		if err != nil {
			continue // the place is kept for a while
		}
		if !atomic.CompareAndSwapUint64(&l.at().Until, l.until, next) {
			l.gone.Store(&ErrLost)
			l.Interrupt() // likewise
			return
		}
		l.until = next
		l.show() // a program may have taken the place for left
	}
}

// leave gives the place back. What another has taken over meanwhile stays.
func (l *Listener) leave() {
	if !atomic.CompareAndSwapUint64(&l.at().Until, l.until, l.until^1) {
		return
	}
	atomic.AndUint64(&l.maps.Entries.Monitor.Listening, ^uint64(1<<l.place))
	_ = l.maps.BlMonitorRing.Delete(uint32(l.place)) // else the next listener replaces it
	atomic.StoreUint64(&l.at().Until, 0)
}

// Interrupt ends a [Listener.Read] that waits, and all later ones.
func (l *Listener) Interrupt() { _ = l.reader.Close() }

// Read waits for an event, which is valid until the next call. The error is [ErrClosed] after
// [Listener.Interrupt], [ErrLost] and [ErrStalled].
func (l *Listener) Read() (*bpf.SockBlEvent, error) {
	l.read.Store(0)
	defer func() { l.read.Store(int64(time.Since(l.begun))) }()
	for {
		if err := l.reader.ReadInto(&l.record); err != nil {
			if why := l.gone.Load(); why != nil {
				return nil, *why
			}
			return nil, err
		}
		if len(l.record.RawSample) >= int(unsafe.Sizeof(bpf.SockBlEvent{})) {
			return (*bpf.SockBlEvent)(unsafe.Pointer(&l.record.RawSample[0])), nil
		}
	}
}

// SetDeadline ends a [Listener.Read] that waits longer, with [os.ErrDeadlineExceeded]; the zero
// value ends none.
func (l *Listener) SetDeadline(t time.Time) { l.reader.SetDeadline(t) }

// LeftOut returns how many events were not told: those beyond the rate, and those for which the
// ring had no room. Its errors are those of [Listener.Read], too.
func (l *Listener) LeftOut() (uint64, error) {
	if why := l.gone.Load(); why != nil {
		return 0, *why // what is counted there is another's
	}
	var perCPU []bpf.SockBlMonitorCpuEntry
	if err := l.maps.BlMonitorCpu.Lookup(uint32(l.place), &perCPU); err != nil {
		return 0, fmt.Errorf("read how many events were left out: %w", err)
	}
	var n uint64
	for _, c := range perCPU {
		n += c.LeftOut
	}
	return n, nil
}

// Close ends listening.
func (l *Listener) Close() error {
	l.cancel()
	l.renews.Wait()
	if l.gone.Load() == nil {
		l.leave()
	}
	return errors.Join(l.reader.Close(), l.ring.Close(), l.maps.Close())
}

// ListensAt reports whether it is the programs of these maps that it listens to.
func (l *Listener) ListensAt(maps *bpfmap.Maps) (bool, error) { return maps.SharesMonitor(l.maps) }
