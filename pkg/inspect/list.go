package inspect

import (
	"cmp"
	"slices"
)

// BackendEntry is a backend with the Service port that it belongs to.
type BackendEntry struct {
	Backend
	Service PortName `json:"service"`
}

// Backends returns the backends of all Service ports.
func (d *Datapath) Backends() ([]BackendEntry, error) {
	r, err := d.readServices()
	if err != nil {
		return nil, err
	}
	list := make([]BackendEntry, 0, len(r.Backends))
	for id, b := range r.Backends {
		list = append(list, BackendEntry{r.backend(id, b), r.portName(b.Service)})
	}
	slices.SortFunc(list, func(a, b BackendEntry) int {
		return cmp.Or(a.Service.compare(b.Service), a.compare(b.Backend))
	})
	return list, nil
}

// FrontendEntry is a frontend with the Service port that it leads to; one that
// refuses the other ports of a ClusterIP names the first port of the Service.
type FrontendEntry struct {
	Frontend
	Service PortName `json:"service"`
}

// Frontends returns the frontends of all Service ports.
func (d *Datapath) Frontends() ([]FrontendEntry, error) {
	r, err := d.readServices()
	if err != nil {
		return nil, err
	}
	list := make([]FrontendEntry, 0, len(r.Frontends))
	for key, f := range r.Frontends {
		list = append(list, FrontendEntry{r.frontend(key, f), r.portName(f.Service)})
	}
	slices.SortFunc(list, func(a, b FrontendEntry) int {
		return cmp.Or(a.Service.compare(b.Service), a.compare(b.Frontend))
	})
	return list, nil
}
