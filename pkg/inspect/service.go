package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// Service is how a Service is served on this node.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Type      string `json:"type"`
	// InternalTrafficPolicy and ExternalTrafficPolicy are Cluster or Local.
	InternalTrafficPolicy string `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy string `json:"externalTrafficPolicy"`
	// AffinitySeconds is the time-out of ClientIP affinity, 0 without affinity.
	AffinitySeconds uint32 `json:"affinitySeconds"`
	// Unapplied is the reason why the Service is not served in full; nil: it is.
	Unapplied *Unapplied `json:"unapplied,omitempty"`
	// Ports has an entry for each port and family.
	Ports []Port `json:"ports"`
	// Counts are the sums of those of Ports.
	Counts
}

// Unapplied is the error of a Service that the agent could not write in full, and its next try.
type Unapplied struct {
	Error string    `json:"error"` // its first 491 bytes
	Since time.Time `json:"since"`
	Next  time.Time `json:"next"` // when it is tried again
	Tries uint32    `json:"tries"`
}

// ErrNotFound says that a Service is not served.
var ErrNotFound = errors.New("not found")

// NotFoundError is a Service that is not served. It is an [ErrNotFound].
type NotFoundError struct {
	Name    model.Name
	Similar []model.Name // served ones that may have been meant
}

// Error names the Service and what may have been meant.
func (e *NotFoundError) Error() string {
	const hint = "headless and ExternalName services have nothing to serve"
	switch len(e.Similar) {
	case 0:
		return fmt.Sprintf("service %s is not served on this node (%s; beeline service list shows those that are)", e.Name, hint)
	case 1:
		return fmt.Sprintf("service %s is not served on this node; did you mean %s?", e.Name, e.Similar[0])
	}
	return fmt.Sprintf("service %s is not served on this node; did you mean one of %s?", e.Name, join(e.Similar))
}

// Unwrap makes errors.Is(err, ErrNotFound) true.
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// Services returns all Services.
func (d *Datapath) Services() ([]Service, error) {
	r, err := d.readServices()
	if err != nil {
		return nil, err
	}
	return d.services(r)
}

func (d *Datapath) services(r *reading) ([]Service, error) {
	byName := make(map[model.Name]*Service)
	for id, port := range r.ports() {
		name := r.Names[id].Port.Service
		if byName[name] == nil {
			byName[name] = r.service(id)
		}
		byName[name].addPort(*port)
	}
	unapplied, err := statusmap.New(d.maps).Unapplied()
	if err != nil {
		return nil, err
	}
	for i := range unapplied {
		u := &unapplied[i]
		if byName[u.Service] == nil {
			byName[u.Service] = &Service{Namespace: u.Service.Namespace, Name: u.Service.Name, Ports: []Port{}}
		}
		byName[u.Service].Unapplied = &Unapplied{Error: u.Error, Since: u.Since, Next: u.Next, Tries: u.Tries}
	}
	list := make([]Service, 0, len(byName))
	for _, s := range byName {
		slices.SortFunc(s.Ports, func(a, b Port) int { return a.compare(b.PortName) })
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// service returns the Service that a port's id belongs to, without its ports.
func (r *reading) service(id uint32) *Service {
	name := r.Names[id]
	return &Service{
		Namespace:             name.Port.Service.Namespace,
		Name:                  name.Port.Service.Name,
		Type:                  name.Type,
		InternalTrafficPolicy: trafficPolicy(name.InternalLocal),
		ExternalTrafficPolicy: trafficPolicy(name.ExternalLocal),
		AffinitySeconds:       r.Services[id].AffinitySeconds,
	}
}

func trafficPolicy(local bool) string {
	if local {
		return "Local"
	}
	return "Cluster"
}

func (s *Service) addPort(p Port) {
	s.Ports = append(s.Ports, p)
	s.add(p.Counts)
}

// Service returns one Service. The error is a [NotFoundError] when it is not
// served.
func (d *Datapath) Service(name model.Name) (*Service, error) {
	r, err := d.readServices()
	if err != nil {
		return nil, err
	}
	return d.service(r, name)
}

// service is Service by a reading.
func (d *Datapath) service(r *reading, name model.Name) (*Service, error) {
	services, err := d.services(r)
	if err != nil {
		return nil, err
	}
	names := make([]model.Name, 0, len(services))
	for i := range services {
		found := model.Name{Namespace: services[i].Namespace, Name: services[i].Name}
		if found == name {
			return &services[i], nil
		}
		names = append(names, found)
	}
	return nil, &NotFoundError{Name: name, Similar: similar(name, names)}
}
