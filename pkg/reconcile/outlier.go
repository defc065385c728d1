package reconcile

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// lookPeriod is how often the failures of endpoints are looked at; where that would take more than a
// fiftieth of a CPU, because so many Services ask for it, it is done less often.
const (
	lookPeriod = 50 * time.Millisecond
	lookShare  = 49
)

// trialTime is how long nothing may be known of a connection to an endpoint on trial. A SYN is sent again
// after a second; that one is answered cannot be seen where the answer takes another way.
const trialTime = 3 * time.Second

// OutlierStore is a store in which programs count the connections to a backend that fail. What it has
// is the only memory of ejections: the next agent goes on with it.
type OutlierStore interface {
	Outlier(id, generation uint32) tables.Outlier
	PutOutlier(id, generation uint32, o tables.Outlier) error
	// Now returns the time of [tables.Outlier.Until].
	Now() (time.Duration, error)
}

// Ejection is an endpoint that is ejected, or let in again.
type Ejection struct {
	Port model.PortName
	// BackendID and Generation are those of Endpoint in the tables.
	BackendID, Generation uint32
	Endpoint              netip.AddrPort
	Failures              uint32        // connections in a row
	Pause                 time.Duration // for how long; 0: it is let in
}

// outliers are the Services with outlier detection.
type outliers struct {
	store    OutlierStore // nil: no Service has it
	services map[model.Name]model.Outliers
	timer    *time.Timer
	due      <-chan time.Time
	// trials are the endpoints on trial, by the backend's id: since when its connection is known to be
	// under way; 0: it is not.
	trials map[uint32]time.Duration
	// back are since when endpoints are back which have been ejected, likewise.
	back map[uint32]time.Duration
	err  string // of the last look, as logged
}

// outliersOf returns how endpoints of the Service are ejected.
func (r *Reconciler) outliersOf(svc *model.Service) model.Outliers {
	if r.outliers.store == nil {
		return model.Outliers{}
	}
	if svc.Outliers != nil {
		return *svc.Outliers
	}
	return r.opts.Outliers
}

// watchOutliers notes that endpoints of the Service are to be ejected so, and returns those that are,
// and those of them that are on trial.
func (r *Reconciler) watchOutliers(svc *model.Service, o model.Outliers) (ejected, onTrial map[netip.AddrPort]bool) {
	if !o.Used() {
		delete(r.outliers.services, svc.Name)
		return nil, nil
	}
	r.outliers.services[svc.Name] = o
	ejected, onTrial = make(map[netip.AddrPort]bool), make(map[netip.AddrPort]bool)
	eachPort(svc, func(name tables.ServicePortName) {
		r.tables.Backends(name, func(id uint32, b tables.Backend) {
			known := r.outliers.store.Outlier(id, b.Generation)
			if known.Until == 0 {
				return
			}
			ejected[b.AddrPort] = true
			if known.Trial != tables.NoTrial {
				onTrial[b.AddrPort] = true
			}
		})
	})
	return ejected, onTrial
}

// eachPort calls fn for each Service port whose connections are seen to fail.
func eachPort(svc *model.Service, fn func(tables.ServicePortName)) {
	for _, family := range model.Families {
		for _, port := range svc.Ports {
			if port.Protocol == model.TCP && svc.HasFamily(family) {
				fn(portName(svc, port, family))
			}
		}
	}
}

// startOutliers has failures looked at, until stop is called.
func (r *Reconciler) startOutliers() (stop func()) {
	if r.outliers.store == nil || !r.opts.Ejects {
		return func() {}
	}
	r.outliers.timer = time.NewTimer(lookPeriod)
	r.outliers.due = r.outliers.timer.C
	return func() { r.outliers.timer.Stop() }
}

// lookAtOutliers ejects the endpoints that have failed, and tries those whose time is over.
func (r *Reconciler) lookAtOutliers() {
	if !r.complete {
		return
	}
	now, err := r.outliers.store.Now()
	if err != nil {
		r.outliers.fail(err)
		return
	}
	look := look{r: r, now: now}
	for name, o := range r.outliers.services {
		r.mu.Lock()
		svc := r.services[name]
		r.mu.Unlock()
		if svc == nil {
			continue // the next sync removes it
		}
		before := look.changes
		eachPort(svc, func(name tables.ServicePortName) { look.port(name, o) })
		if look.changes != before {
			r.mu.Lock()
			r.touch(name)
			r.mu.Unlock()
		}
	}
	r.outliers.fail(look.err)
	if r.opts.Ejected != nil {
		r.opts.Ejected(look.ejected, look.more)
	}
	if look.changes > 0 {
		r.signal()
	}
}

// fail logs an error, once.
func (o *outliers) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != o.err {
		klog.ErrorS(err, "Endpoints that fail are not all ejected, trying again")
	}
	o.err = text
}

// look is one look at all endpoints.
type look struct {
	r             *Reconciler
	now           time.Duration
	changes       int
	ejected, more int
	err           error
}

// failing is a backend of a Service port that is to be ejected.
type failing struct {
	id  uint32
	b   tables.Backend
	was tables.Outlier
}

// port looks at the endpoints of a Service port.
func (l *look) port(name tables.ServicePortName, o model.Outliers) {
	var list, due []failing
	endpoints, ejected := 0, 0
	l.r.tables.Backends(name, func(id uint32, b tables.Backend) {
		was := l.r.outliers.store.Outlier(id, b.Generation)
		f := failing{id, b, was}
		switch {
		case was.Until > l.now:
			endpoints++
			ejected++
		case was.Until != 0:
			endpoints++
			ejected++
			due = append(due, f)
		case b.Weight == 0:
		case was.Failures >= uint32(o.Failures):
			endpoints++
			list = append(list, f)
		default:
			endpoints++
			l.forgive(&f, o)
		}
	})
	ejected -= l.try(name, due, o)
	for i := range list {
		if o.MayEject(endpoints, ejected) && l.eject(name, &list[i], o) {
			ejected++
		}
	}
	l.ejected += ejected
}

// put writes what is known of a backend, and reports whether it has.
func (l *look) put(f *failing, next tables.Outlier) bool {
	if err := l.r.outliers.store.PutOutlier(f.id, f.b.Generation, next); err != nil {
		l.err = err
		return false
	}
	return true
}

func (l *look) eject(name tables.ServicePortName, f *failing, o model.Outliers) bool {
	pause := o.Ejection(f.was.Times)
	// To a second, and not less.
	if !l.put(f, tables.Outlier{Until: (l.now + pause).Truncate(time.Second) + time.Second, Times: f.was.Times + 1}) {
		return false
	}
	delete(l.r.outliers.trials, f.id)
	delete(l.r.outliers.back, f.id)
	l.changes++
	l.more++
	klog.InfoS("Endpoint is ejected: connections to it fail", "service", name.Port, "endpoint", f.b.AddrPort, "failures", f.was.Failures, "for", pause)
	l.tell(name, f, pause)
	return true
}

// tell tells that an endpoint is ejected for so long, 0: that it is let in.
func (l *look) tell(name tables.ServicePortName, f *failing, pause time.Duration) {
	if l.r.opts.Ejection != nil {
		l.r.opts.Ejection(Ejection{name.Port, f.id, f.b.Generation, f.b.AddrPort, f.was.Failures, pause})
	}
}

// try goes on with the trials of endpoints whose time is over, one at a time, and returns how many of
// them are let in.
func (l *look) try(name tables.ServicePortName, due []failing, o model.Outliers) (admitted int) {
	trials := l.r.outliers.trials
	busy := slices.ContainsFunc(due, func(f failing) bool { return f.was.Trial != tables.NoTrial })
	for i := range due {
		f := &due[i]
		taken, tried := trials[f.id]
		next := tables.Outlier{Times: f.was.Times}
		switch {
		case f.was.Trial != tables.NoTrial && f.was.Failures > 0:
			l.eject(name, f, o)
			continue
		case f.was.Trial == tables.TrialTaken && taken == 0:
			trials[f.id] = l.now
			continue
		case f.was.Trial == tables.TrialTaken && l.now-taken >= trialTime:
			next.Failures = uint32(o.Failures) - 1 // the next failure ejects it
		case f.was.Trial != tables.NoTrial:
			trials[f.id] = taken
			continue
		case tried: // and answered
		case !busy:
			busy = l.offer(name, f)
			continue
		default:
			continue
		}
		if l.admit(name, f, next) {
			admitted++
		}
	}
	return admitted
}

// offer has the next connection sent to an endpoint, and reports whether it has.
func (l *look) offer(name tables.ServicePortName, f *failing) bool {
	if !l.put(f, tables.Outlier{Until: f.was.Until, Times: f.was.Times, Trial: tables.TrialOffered}) {
		return false
	}
	l.r.outliers.trials[f.id] = 0
	l.changes++
	klog.V(2).InfoS("Endpoint is on trial: one connection goes to it", "service", name.Port, "endpoint", f.b.AddrPort)
	return true
}

// admit lets an endpoint in, and reports whether it has.
func (l *look) admit(name tables.ServicePortName, f *failing, next tables.Outlier) bool {
	if !l.put(f, next) {
		return false
	}
	delete(l.r.outliers.trials, f.id)
	l.r.outliers.back[f.id] = l.now
	l.changes++
	klog.InfoS("Endpoint gets connections again", "service", name.Port, "endpoint", f.b.AddrPort)
	l.tell(name, f, 0)
	return true
}

// forgive forgets that an endpoint has been ejected which has served well for as long.
func (l *look) forgive(f *failing, o model.Outliers) {
	if f.was.Times == 0 {
		return
	}
	back := l.r.outliers.back
	since, known := back[f.id]
	if !known || f.was.Failures != 0 {
		back[f.id] = l.now
		return
	}
	if l.now-since >= o.Time && l.put(f, tables.Outlier{}) {
		delete(back, f.id)
	}
}
