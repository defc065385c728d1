package bpfmap

import "errors"

// ForgetFrontends leaves all new connections to somebody else: no address belongs
// to a Service any more. Flows and sockets that are connected already stay as they
// are. What refuses connections to other addresses goes first, so that none is
// refused that is served.
func (m *Maps) ForgetFrontends() error {
	var cidrs []sockBlCidrKey
	var refusing, others []sockBlFrontendKey
	err := errors.Join(
		each(m.all[sockMapBlServiceCidr], func(key *sockBlCidrKey, _ *uint32) { cidrs = append(cidrs, *key) }),
		each(m.all[sockMapBlFrontend], func(key *sockBlFrontendKey, value *sockBlFrontendEntry) {
			if key.Port == 0 {
				refusing = append(refusing, *key)
			} else {
				others = append(others, *key)
			}
		}))
	if err != nil {
		return err
	}
	for _, key := range cidrs {
		if err := m.remove(sockMapBlServiceCidr, &key); err != nil {
			return err
		}
	}
	for _, key := range append(refusing, others...) {
		if err := m.remove(sockMapBlFrontend, &key); err != nil {
			return err
		}
	}
	return nil
}
