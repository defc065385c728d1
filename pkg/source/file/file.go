// Package file is the source that reads Services, EndpointSlices and Nodes from a
// folder of manifests and follows changes to them.
//
// A file is taken as a whole or not at all: while it is broken or clashes with
// another one, its objects stay as they last were, also over a restart. What
// changed in the folder at one time reaches the sink as one update. A Service
// that chose no cluster IP or node port is assigned one, which it keeps for as
// long as it exists.
package file

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/setting"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// The node ports assigned when Options gives none.
const (
	DefaultNodePortMin = 30000
	DefaultNodePortMax = 32767
)

// Options configures a Source.
type Options struct {
	// Dir holds the manifests: *.yaml, *.yml and *.json directly in it.
	Dir string
	// StateFile keeps what was assigned and each file's last good content over a
	// restart. Its folder must exist. "" keeps nothing.
	StateFile string
	// ReadOnly leaves StateFile as it is.
	ReadOnly bool
	// NodeName is this node's, whose zone a Node of that name has. Its addresses are not taken.
	NodeName string
	// ServiceRanges are the ranges of assigned cluster IPs, at most one of each
	// IP family. The first one's family is that of Services which name none. The sink is
	// told of those that no Service of another proxy is in.
	ServiceRanges []netip.Prefix
	// NodePortMin and NodePortMax bound the node ports, both included. Both 0 is
	// the default range.
	NodePortMin, NodePortMax uint16
	// Allowed is what the manifests may ask for.
	Allowed convert.Allowed
	// Sink gets the Services and slices.
	Sink source.Sink
}

// Source follows a folder of manifests.
type Source struct {
	opts  Options
	rules *rules

	// settle is how long the folder must be quiet before it is read, so that a
	// file is seldom read half written, but it is read after unsettled at the
	// latest. rescan and retry are how often it is read without an event, while it
	// can be watched and while it cannot or a file is being written.
	settle, unsettled, rescan, retry time.Duration

	folder  folder
	files   map[string]*manifest
	catalog *catalog // what the files come to
	sent    *catalog // what the sink has
	synced  bool
	state   *state
	// recalled says that files has what the state file does.
	recalled bool
	reading  *reading

	mu       sync.Mutex
	listing  error // of the folder
	watching error
	saving   error
	rejected map[string][]error // by file name
}

// manifest is a file of the folder.
type manifest struct {
	look
	digest                  // of its text; zero when err is set
	err    error            // why it cannot be read
	now    *content         // decoded from the text; nil when that has faults
	good   *content         // last one accepted
	faults []*yamldoc.Fault // of the text by itself
}

// choices returns the contents the file may have, the preferred one first.
func (m *manifest) choices() []*content {
	var all []*content
	for _, c := range []*content{m.now, m.good} {
		if c != nil && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// New returns a source that holds what the state file does. It fails for options
// that make no sense and for a state file that cannot be read.
func New(opts Options) (*Source, error) {
	rules, err := newRules(&opts)
	if err != nil {
		return nil, err
	}
	st := newState("")
	if opts.StateFile != "" {
		if st, err = openState(opts.StateFile); err != nil {
			return nil, err
		}
	}
	return &Source{
		opts:  opts,
		rules: rules,
		state: st,

		settle:    30 * time.Millisecond,
		unsettled: 300 * time.Millisecond,
		rescan:    30 * time.Second,
		retry:     time.Second,

		folder:   &directory{opts.Dir, fileClock},
		files:    map[string]*manifest{},
		catalog:  firstCatalog(convert.SortedCIDRs(opts.ServiceRanges), st.assigned),
		sent:     newCatalog(),
		rejected: map[string][]error{},
		reading:  newReading(opts.Dir, 0),
	}, nil
}

func newRules(opts *Options) (*rules, error) {
	ports := portRange{opts.NodePortMin, opts.NodePortMax}
	if ports == (portRange{}) {
		ports = portRange{DefaultNodePortMin, DefaultNodePortMax}
	}
	if ports.min == 0 || ports.max < ports.min {
		return nil, setting.Errorf("serviceNodePortRange", "%s: the first must be 1 or more and not above the last", ports)
	}
	r := &rules{cidrs: opts.ServiceRanges, nodePorts: ports, allowed: opts.Allowed}
	for _, prefix := range opts.ServiceRanges {
		a, err := newAddrRange(prefix)
		if err != nil {
			return nil, err
		}
		if other := r.rangeOf(a.family()); other != nil {
			return nil, setting.Errorf(rangeField, "%s and %s are both %s: give one range of each family",
				other.prefix, a.prefix, a.family())
		}
		r.ranges = append(r.ranges, a)
	}
	return r, nil
}

// Run reads the folder, hands what it finds to the sink and follows changes
// until ctx ends, which is no error. Faults of manifests and of the folder do not
// end it; see Errors. It is called once.
func (s *Source) Run(ctx context.Context) error {
	w := &watcher{dir: s.opts.Dir}
	defer w.close()
	defer s.end()
	next := time.NewTimer(s.scan(w))
	defer next.Stop()
	var first time.Time // event that is not followed up yet
	for {
		events, errs := w.channels()
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			if first.IsZero() {
				first = time.Now()
			}
			if time.Since(first) < s.unsettled {
				next.Reset(s.settle)
			}
		case err := <-errs:
			klog.ErrorS(err, "Watching the manifests failed, reading all of them again", "dir", s.opts.Dir)
			next.Reset(s.settle)
		case <-next.C:
			first = time.Time{}
			next.Reset(s.scan(w))
		}
	}
}

// end leaves the state file to the next agent.
func (s *Source) end() {
	defer s.state.close()
	if s.opts.ReadOnly {
		return
	}
	if err := s.state.compact(); err != nil {
		klog.ErrorS(err, "The state file could not be compacted", "file", s.opts.StateFile)
	}
}

// scan reads what changed in the folder and passes it on. It returns when to do so again at
// the latest.
func (s *Source) scan(w *watcher) time.Duration {
	watching := w.follow()
	found, err := s.folder.list()
	s.note(&s.watching, watching, "Changes of manifests are seen late")
	s.note(&s.listing, err, "Manifests stay as they were")
	s.reading = newReading(s.opts.Dir, len(found))
	defer s.reading.end()
	s.recall(found)
	if err != nil {
		s.send()
		return s.retry
	}
	changed, unfinished := s.take(found)
	if changed {
		s.plan()
	}
	s.send()
	if !s.synced {
		s.synced = true
		s.opts.Sink.Synced()
	}
	if watching != nil || unfinished {
		return s.retry
	}
	return s.rescan
}

// recall begins with what a former source had. A file that has not changed since is read from
// the folder.
func (s *Source) recall(found map[string]look) {
	if s.recalled {
		return
	}
	s.recalled = true
	for _, name := range slices.Sorted(maps.Keys(s.state.files)) {
		m := &manifest{digest: s.state.files[name].digest}
		raw, err := s.folder.read(name)
		if err == nil && digestOf(raw) == m.digest {
			m.look = found[name]
		} else if raw, err = s.state.content(name); err != nil {
			klog.ErrorS(err, "Services of a manifest are lost", "file", name)
			continue
		}
		m.now, m.faults = s.decode(raw)
		m.good = m.now
		s.files[name] = m
	}
	if len(s.files) == 0 {
		return
	}
	s.plan()
	for name, a := range s.state.assigned { // of files that the state lacks
		if _, ok := s.catalog.assigned.now[name]; !ok {
			s.catalog.assigned.put(name, a)
			s.catalog.whole = false
		}
	}
}

// decode decodes a file's text.
func (s *Source) decode(raw []byte) (*content, []*yamldoc.Fault) {
	s.reading.begin(len(raw))
	defer s.reading.file()
	return s.rules.decodeEach(raw, s.reading.object)
}

// take makes found the files of the source and reports whether any differs from what it was, and whether any is
// being written.
// It reads those that look different, one after the other, and keeps no text. One that is being written
// again keeps its content until that is done: the first half of a manifest may be a valid one, by which the
// Services of the other half would be deleted.
func (s *Source) take(found map[string]look) (changed, unfinished bool) {
	for _, name := range slices.Sorted(maps.Keys(found)) {
		m := s.files[name]
		if m != nil && m.err == nil && m.look == found[name] && m.look != (look{}) {
			continue
		}
		if m != nil && m.good != nil && s.folder.writing(name) {
			unfinished = true
			continue
		}
		raw, err := s.folder.read(name)
		if errors.Is(err, errNoManifest) {
			delete(found, name)
			continue
		}
		if m == nil {
			m = &manifest{}
			s.files[name] = m
			changed = true
		}
		changed = s.update(m, raw, err) || changed
		m.look = found[name]
	}
	for name := range s.files {
		if _, ok := found[name]; !ok {
			delete(s.files, name)
			changed = true
		}
	}
	return changed, unfinished
}

// update makes m what was read of its file and reports whether it differs from what it was.
func (s *Source) update(m *manifest, raw []byte, err error) bool {
	sum := digest{}
	if err == nil {
		sum = digestOf(raw)
	}
	if m.digest == sum && errorText(m.err) == errorText(err) {
		return false
	}
	m.digest, m.err = sum, err
	switch {
	case err != nil:
		m.now, m.faults = nil, []*yamldoc.Fault{{Reason: err.Error()}}
	case m.good != nil && m.good.digest == sum:
		m.now, m.faults = m.good, nil
	default:
		m.now, m.faults = s.decode(raw)
	}
	return true
}

// text returns the text of a content; nil when it is in use no more.
func (s *Source) text(name string, c *content) []byte {
	if raw, err := s.folder.read(name); err == nil && digestOf(raw) == c.digest {
		return raw
	}
	if s.state.files[name].digest != c.digest {
		return nil
	}
	raw, _ := s.state.content(name)
	return raw
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// plan brings the catalog, the state file and the errors up to the files.
func (s *Source) plan() {
	var candidates []candidate
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		candidates = append(candidates, candidate{name, s.files[name].choices()})
	}
	if s.catalog != s.sent {
		s.catalog.whole = false // what was sent is still to be compared with
	}
	catalog, clashes := s.rules.plan(s.catalog, candidates, s.text)
	s.catalog = catalog
	rejected := map[string][]error{}
	for name, m := range s.files {
		if c := catalog.chosen.now[name]; c != nil {
			m.good = c
		}
		if faults := append(slices.Clip(m.faults), clashes[name]...); len(faults) > 0 {
			rejected[name] = yamldoc.InFile(name, faults)
		}
	}
	s.noteRejected(rejected)
}

// send saves the state, since an address that was told must stay, and then hands
// the sink what it lacks.
func (s *Source) send() {
	if s.catalog == s.sent && s.saving == nil {
		return
	}
	s.note(&s.saving, s.save(), "Addresses may change at the next restart")
	u := s.sent.diff(s.catalog)
	for _, n := range u.PutNodes {
		if n.Name == s.opts.NodeName {
			u.LocalNode = &model.LocalNode{Name: n.Name, Zone: n.Zone}
		}
	}
	s.sent = s.catalog
	s.sent.forget()
	if reflect.ValueOf(u).IsZero() {
		return
	}
	s.opts.Sink.Apply(u)
	klog.InfoS("Manifests applied", "files", len(s.files), "read", s.reading.files, "took", s.reading.took(), "services", len(s.catalog.services.now),
		"putServices", len(u.PutServices), "deleteServices", len(u.DeleteServices),
		"putSlices", len(u.PutSlices), "deleteSlices", len(u.DeleteSlices),
		"putNodes", len(u.PutNodes), "deleteNodes", len(u.DeleteNodes))
}

func (s *Source) save() error {
	if s.opts.StateFile == "" || s.opts.ReadOnly {
		return nil
	}
	good := make(map[string]*content, len(s.files))
	for name, m := range s.files {
		if m.good != nil {
			good[name] = m.good
		}
	}
	return s.state.save(s.catalog.assigned.now, good, s.text)
}

// note replaces one of the source's own errors and logs it when it is news.
func (s *Source) note(at *error, err error, effect string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && errorText(*at) != err.Error() {
		klog.ErrorS(err, effect, "dir", s.opts.Dir)
	}
	*at = err
}

// noteRejected replaces the errors of the files and logs what is news.
func (s *Source) noteRejected(rejected map[string][]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, errs := range rejected {
		if errorText(errors.Join(s.rejected[name]...)) == errorText(errors.Join(errs...)) {
			continue
		}
		for _, err := range errs {
			klog.ErrorS(err, "Manifest rejected, its last valid content is served", "dir", s.opts.Dir, "file", name)
		}
	}
	for name := range s.rejected {
		if rejected[name] == nil && s.files[name] != nil {
			klog.InfoS("Manifest is valid again", "dir", s.opts.Dir, "file", name)
		}
	}
	s.rejected = rejected
}

// Errors returns the present errors: of the folder, its watch and the state
// file, then with each file, by name. Those of files are of type [*yamldoc.Fault]. It
// may be called from any goroutine.
func (s *Source) Errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, err := range []error{s.listing, s.watching, s.saving} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.rejected)) {
		errs = append(errs, s.rejected[name]...)
	}
	return errs
}
