package reconcile

import (
	"net/netip"
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

// OutlierStore is a store in which programs count the connections to a backend that fail. What it has
// is the only memory of ejections: the next agent goes on with it.
type OutlierStore interface {
	Outlier(id, generation uint32) tables.Outlier
	PutOutlier(id, generation uint32, o tables.Outlier) error
	// Now returns the time of [tables.Outlier.Until].
	Now() (time.Duration, error)
}

// outliers are the Services with outlier detection.
type outliers struct {
	store    OutlierStore // nil: no Service has it
	services map[model.Name]model.Outliers
	timer    *time.Timer
	due      <-chan time.Time
	// trials are since when endpoints are back which have been ejected, by the backend's id.
	trials map[uint32]time.Duration
	err    string // of the last look, as logged
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

// watchOutliers notes that endpoints of the Service are to be ejected so, and returns those that are.
func (r *Reconciler) watchOutliers(svc *model.Service, o model.Outliers) map[netip.AddrPort]bool {
	if !o.Used() {
		delete(r.outliers.services, svc.Name)
		return nil
	}
	r.outliers.services[svc.Name] = o
	ejected := make(map[netip.AddrPort]bool)
	eachPort(svc, func(name tables.ServicePortName) {
		r.tables.Backends(name, func(id uint32, b tables.Backend) {
			if r.outliers.store.Outlier(id, b.Generation).Until != 0 {
				ejected[b.AddrPort] = true
			}
		})
	})
	return ejected
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

// lookAtOutliers ejects the endpoints that have failed, and lets in those whose time is over.
func (r *Reconciler) lookAtOutliers() {
	start := time.Now()
	defer func() { r.outliers.timer.Reset(max(lookPeriod, lookShare*time.Since(start))) }()
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
	var list []failing
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
			l.readmit(name, &f, o)
		case b.Weight == 0:
		case was.Failures >= uint32(o.Failures):
			endpoints++
			list = append(list, f)
		default:
			endpoints++
			l.forgive(&f, o)
		}
	})
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
	l.changes++
	l.more++
	klog.InfoS("Endpoint is ejected: connections to it fail", "service", name.Port, "endpoint", f.b.AddrPort, "failures", f.was.Failures, "for", pause)
	if l.r.opts.Ejection != nil {
		l.r.opts.Ejection(name.Port, f.b.AddrPort, pause)
	}
	return true
}

// readmit lets an endpoint in on trial: the first connection that fails ejects it again, one that is
// answered ends that.
func (l *look) readmit(name tables.ServicePortName, f *failing, o model.Outliers) {
	if !l.put(f, tables.Outlier{Failures: uint32(o.Failures) - 1, Times: f.was.Times}) {
		return
	}
	l.r.outliers.trials[f.id] = l.now
	l.changes++
	klog.InfoS("Endpoint gets connections again", "service", name.Port, "endpoint", f.b.AddrPort)
}

// forgive forgets that an endpoint has been ejected which has served well for as long.
func (l *look) forgive(f *failing, o model.Outliers) {
	if f.was.Times == 0 {
		return
	}
	trials := l.r.outliers.trials
	since, known := trials[f.id]
	if !known || f.was.Failures != 0 {
		trials[f.id] = l.now
		return
	}
	if l.now-since >= o.Time && l.put(f, tables.Outlier{}) {
		delete(trials, f.id)
	}
}
