package main

import (
	"flag"
	"fmt"
	"log"
	"os/exec"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// netpol turns NetworkPolicies into nft rules of one node, for pods that the node routes to and from (the
// ptp plugin of CNI: even two pods of one node meet in the forward hook, after a Service's address was
// translated). IPv4 only. A change replaces the whole table in one transaction. Rules follow a pod's address,
// so a new pod is open for as long as that takes, some tens of milliseconds; connections that stand are kept.
// The node itself always reaches its own pods, as probes must.
type policyAgent struct {
	node       string
	pods       []*core.Pod
	namespaces cache.Store
	policies   []*networking.NetworkPolicy
}

const settle = 30 * time.Millisecond // one transaction for a burst of events

// sorted are a store's objects, always in the same order: the same objects make the same rules.
func sorted[T meta.Object](s cache.Store) []T {
	keys := s.ListKeys()
	slices.Sort(keys)
	var found []T
	for _, key := range keys {
		if item, ok, _ := s.GetByKey(key); ok {
			found = append(found, item.(T))
		}
	}
	return found
}

func selects(s *meta.LabelSelector, set map[string]string) bool {
	selector, err := meta.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}

func running(p *core.Pod) bool {
	return p.Status.PodIP != "" && !p.Spec.HostNetwork &&
		p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed
}

func (a *policyAgent) namespaceLabels(name string) map[string]string {
	if item, ok, _ := a.namespaces.GetByKey(name); ok {
		return item.(*core.Namespace).Labels
	}
	return nil
}

// peerPods are the pods that a peer of a policy in `namespace` names.
func (a *policyAgent) peerPods(peer networking.NetworkPolicyPeer, namespace string) []*core.Pod {
	var found []*core.Pod
	for _, p := range a.pods {
		if !running(p) {
			continue
		}
		if peer.NamespaceSelector == nil && p.Namespace != namespace {
			continue
		}
		if peer.NamespaceSelector != nil && !selects(peer.NamespaceSelector, a.namespaceLabels(p.Namespace)) {
			continue
		}
		if peer.PodSelector == nil || selects(peer.PodSelector, p.Labels) {
			found = append(found, p)
		}
	}
	return found
}

// addressMatches are nft expressions, one of which must hold for the far side `side` (saddr or daddr).
// nil peers mean anybody.
func (a *policyAgent) addressMatches(peers []networking.NetworkPolicyPeer, namespace, side string) []string {
	if len(peers) == 0 {
		return []string{""}
	}
	var matches, addresses []string
	for _, peer := range peers {
		if b := peer.IPBlock; b != nil {
			if strings.Contains(b.CIDR, ":") {
				continue
			}
			m := fmt.Sprintf("ip %s %s ", side, b.CIDR)
			if len(b.Except) > 0 {
				m += fmt.Sprintf("ip %s != { %s } ", side, strings.Join(b.Except, ", "))
			}
			matches = append(matches, m)
			continue
		}
		for _, p := range a.peerPods(peer, namespace) {
			addresses = append(addresses, p.Status.PodIP)
		}
	}
	if len(addresses) > 0 {
		matches = append(matches, fmt.Sprintf("ip %s { %s } ", side, strings.Join(addresses, ", ")))
	}
	return matches
}

// namedPort looks a port's name up in the pods that are dialled.
func namedPort(name string, pods []*core.Pod) []int32 {
	var found []int32
	for _, p := range pods {
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name == name {
					found = append(found, port.ContainerPort)
				}
			}
		}
	}
	return found
}

func portMatches(ports []networking.NetworkPolicyPort, dialled []*core.Pod) []string {
	if len(ports) == 0 {
		return []string{""}
	}
	var matches []string
	for _, port := range ports {
		protocol := "tcp"
		if port.Protocol != nil {
			protocol = strings.ToLower(string(*port.Protocol))
		}
		switch {
		case port.Port == nil:
			matches = append(matches, "meta l4proto "+protocol+" ")
		case port.Port.Type == intstr.String:
			for _, number := range namedPort(port.Port.StrVal, dialled) {
				matches = append(matches, fmt.Sprintf("%s dport %d ", protocol, number))
			}
		case port.EndPort != nil:
			matches = append(matches, fmt.Sprintf("%s dport %d-%d ", protocol, port.Port.IntVal, *port.EndPort))
		default:
			matches = append(matches, fmt.Sprintf("%s dport %d ", protocol, port.Port.IntVal))
		}
	}
	return matches
}

func hasType(p *networking.NetworkPolicy, want networking.PolicyType) bool {
	for _, t := range p.Spec.PolicyTypes {
		if t == want {
			return true
		}
	}
	return false
}

// chain writes what may pass in one direction of one pod; false when no policy isolates it there.
func (a *policyAgent) chain(out *strings.Builder, name string, p *core.Pod, direction networking.PolicyType) bool {
	isolated := false
	var rules strings.Builder
	allow := func(addresses, ports []string) {
		for _, address := range addresses {
			for _, port := range ports {
				fmt.Fprintf(&rules, "    %s%sreturn\n", address, port)
			}
		}
	}
	for _, policy := range a.policies {
		if policy.Namespace != p.Namespace || !hasType(policy, direction) || !selects(&policy.Spec.PodSelector, p.Labels) {
			continue
		}
		isolated = true
		if direction == networking.PolicyTypeIngress {
			for _, rule := range policy.Spec.Ingress {
				allow(a.addressMatches(rule.From, p.Namespace, "saddr"), portMatches(rule.Ports, []*core.Pod{p}))
			}
			continue
		}
		for _, rule := range policy.Spec.Egress {
			var dialled []*core.Pod
			for _, peer := range rule.To {
				dialled = append(dialled, a.peerPods(peer, p.Namespace)...)
			}
			allow(a.addressMatches(rule.To, p.Namespace, "daddr"), portMatches(rule.Ports, dialled))
		}
	}
	if isolated {
		fmt.Fprintf(out, "  chain %s {\n%s    counter drop\n  }\n", name, rules.String())
	}
	return isolated
}

func (a *policyAgent) table() string {
	var chains, egress, ingress strings.Builder
	for _, p := range a.pods {
		if p.Spec.NodeName != a.node || !running(p) {
			continue
		}
		id := strings.ReplaceAll(p.Status.PodIP, ".", "_")
		if a.chain(&chains, "from_"+id, p, networking.PolicyTypeEgress) {
			fmt.Fprintf(&egress, "    ip saddr %s jump from_%s\n", p.Status.PodIP, id)
		}
		if a.chain(&chains, "to_"+id, p, networking.PolicyTypeIngress) {
			fmt.Fprintf(&ingress, "    ip daddr %s jump to_%s\n", p.Status.PodIP, id)
		}
	}
	const standing = "    ct state established,related accept\n"
	return "table inet netpol\ndelete table inet netpol\ntable inet netpol {\n" + chains.String() +
		"  chain forward {\n    type filter hook forward priority 0; policy accept;\n" + standing +
		egress.String() + ingress.String() + "  }\n" +
		// What pods say to this node, where node 0's Services without pods are.
		"  chain input {\n    type filter hook input priority 0; policy accept;\n" + standing + egress.String() + "  }\n}\n"
}

func apply(table string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(table)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %v: %s", err, said)
	}
	return nil
}

func netpol(args []string) {
	flags := flag.NewFlagSet("netpol", flag.ExitOnError)
	config := flags.String("kubeconfig", "", "how the API server is reached")
	node := flags.String("node", "", "the node whose pods are guarded")
	flags.Parse(args)
	rest, err := clientcmd.BuildConfigFromFlags("", *config)
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(rest), 0)
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	watch := func(informer cache.SharedIndexInformer) cache.Store {
		informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { poke() },
			UpdateFunc: func(any, any) { poke() },
			DeleteFunc: func(any) { poke() },
		})
		return informer.GetStore()
	}
	a := &policyAgent{node: *node, namespaces: watch(factory.Core().V1().Namespaces().Informer())}
	pods := watch(factory.Core().V1().Pods().Informer())
	policies := watch(factory.Networking().V1().NetworkPolicies().Informer())
	factory.Start(nil)
	factory.WaitForCacheSync(nil)
	last := ""
	for ; ; <-changed {
		time.Sleep(settle)
		a.pods, a.policies = sorted[*core.Pod](pods), sorted[*networking.NetworkPolicy](policies)
		table := a.table()
		if table == last {
			continue
		}
		if err := apply(table); err != nil {
			log.Print(err, "\n", table) // kept as it was; the next change tries again
			continue
		}
		last = table
		log.Printf("applied %d lines", strings.Count(table, "\n"))
	}
}
