package kubeproxy

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Left names what a kube-proxy has made in the network namespace of the calling thread, whether it
// runs or not. It changes nothing.
func Left() (list []string, err error) {
	session, err := openNFT()
	if err != nil {
		return nil, err
	}
	defer session.close()
	var errs []error
	for i, f := range families {
		found, err := session.left(f, legacyFamilies[i])
		list, errs = append(list, found...), append(errs, err)
	}
	_, err = netlink.LinkByName(ipvsDevice)
	if notFound := (netlink.LinkNotFoundError{}); err == nil {
		list = append(list, "device "+ipvsDevice)
	} else if !errors.As(err, &notFound) {
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}

// left is Left of one IP family.
func (s *nftSession) left(f family, legacy legacyFamily) (list []string, err error) {
	native, err := s.findTable(f, nativeTable)
	if err != nil && !errors.Is(err, errNoNFTables) {
		return nil, err
	}
	if native != nil {
		list = append(list, fmt.Sprintf("table %s %s", f.name, nativeTable))
	}
	tables, err := s.rulesets(f, legacy)
	if err != nil {
		return list, err
	}
	var errs []error
	for _, t := range tables {
		p, err := makePlan(t)
		if !p.empty() {
			list = append(list, fmt.Sprintf("%d chains of %s table %s", len(p.chains), f.name, t.name()))
		}
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}
