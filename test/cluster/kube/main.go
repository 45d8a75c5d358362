// The whole test cluster in one program: etcd, the control plane, a node's agents, cluster DNS
// and the two stand-ins of this folder (fakegpu.go, netpol.go). What runs is named by argv[0], which is a
// link, or by the first argument. One link step instead of eight saves two thirds of time and space.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Components that make a cobra command, which is run in one way.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

// Components with a main of their own; arguments without the name.
var programs = map[string]func([]string){
	"etcd":     func([]string) { etcdmain.Main(os.Args) },
	"coredns":  func([]string) { coredns() },
	"fake-gpu": fakeGPU,
	"netpol":   netpol,
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kube" && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	if run, ok := programs[name]; ok {
		run(os.Args[1:])
	} else if command, ok := commands[name]; ok {
		os.Exit(cli.Run(command()))
	} else {
		fmt.Fprintln(os.Stderr, "usage: kube COMPONENT [FLAG]...")
		os.Exit(2)
	}
}
