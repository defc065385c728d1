package kubeproxy

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Left names what a kube-proxy has made in the network namespace of the calling thread, whether it
// runs or not. It changes nothing. It reads names of chains, and rules of iptables-legacy alone: about 1 µs
// for each, 10 µs for each chain.
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

// Families reports for which IP families, IPv4 and IPv6, a kube-proxy has made rules in the
// network namespace of the calling thread. It makes those of one after those of the other.
func Families() (has [2]bool, err error) {
	session, err := openNFT()
	if err != nil {
		return has, err
	}
	defer session.close()
	var errs [2]error
	for i, f := range families {
		var found []string
		found, errs[i] = session.left(f, legacyFamilies[i])
		has[i] = len(found) > 0
	}
	return has, errors.Join(errs[:]...)
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
	for _, t := range tables {
		if count := leftChains(t); count > 0 {
			list = append(list, fmt.Sprintf("%d chains of %s table %s", count, f.name, t.name()))
		}
	}
	return list, err
}

// leftChains counts the chains of kube-proxy in a table by their names: to read the rules of others,
// which may be many, takes minutes. The two for masquerading do not count: kubelets before v1.27 make them, too,
// and [Cleanup] leaves them where a CNI plugin uses them.
func leftChains(t ruleset) (count int) {
	for _, name := range t.chains() {
		if ownChain(t.name(), name) && name != markChain && name != postroutingChain {
			count++
		}
	}
	return count
}
