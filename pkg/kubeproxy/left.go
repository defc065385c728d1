package kubeproxy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// Left names what a kube-proxy has made in the network namespace of the calling thread, whether it
// runs or not. It changes nothing. It reads names of chains, and rules of iptables-legacy alone: about 1 µs
// for each, 10 µs for each chain.
func Left() (list []string, err error) {
	found, failed := leftRules()
	list = slices.Concat(found[:]...)
	_, err = netlink.LinkByName(IPVSDevice)
	if notFound := (netlink.LinkNotFoundError{}); err == nil {
		list = append(list, "device "+IPVSDevice)
	} else if errors.As(err, &notFound) {
		err = nil
	}
	return list, errors.Join(failed, err)
}

// Families reports for which IP families, IPv4 and IPv6, a kube-proxy has made rules in the
// network namespace of the calling thread. It makes those of one after those of the other.
func Families() (has [2]bool, err error) {
	found, err := leftRules()
	return [2]bool{len(found[0]) > 0, len(found[1]) > 0}, err
}

// leftRules is [Left] without what is of both IP families, by family.
func leftRules() (found [2][]string, err error) {
	session, err := openNFT()
	if err != nil {
		return found, err
	}
	defer session.close()
	var errs [2]error
	for i, f := range families {
		found[i], errs[i] = session.left(f, legacyFamilies[i])
	}
	return found, errors.Join(errs[:]...)
}

// left is leftRules of one IP family.
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
