// Command kwok is Karpenter with its kwok provider, which makes Node objects instead of machines.
//
// Karpenter's own program of that name serves metrics and health on every address of the machine. This one is wired from
// the same packages and serves on the address that LISTEN_ADDRESS names. Called as `kwok crds`, it writes the
// CustomResourceDefinitions of its version.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "crds" {
		definitions := [][]byte{
			apis.NodePoolCRD, apis.NodeClaimCRD, apis.NodeOverlayCRD, apis.CapacityBufferCRD, kwokapis.KWOKNodeClassCRD,
		}
		for _, definition := range definitions {
			fmt.Printf("---\n%s\n", definition)
		}
		return
	}
	address := net.ParseIP(os.Getenv("LISTEN_ADDRESS"))
	if address == nil {
		fail(fmt.Errorf("LISTEN_ADDRESS is %q, which is no address", os.Getenv("LISTEN_ADDRESS")))
	}
	// The manager is made deep inside the operator, which offers no other way to say where it listens.
	ctrl.NewManager = func(config *rest.Config, options manager.Options) (manager.Manager, error) {
		options.Metrics.BindAddress = on(address, options.Metrics.BindAddress)
		options.HealthProbeBindAddress = on(address, options.HealthProbeBindAddress)
		return manager.New(config, options)
	}
	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	fail(err)
	plain := kwok.NewCloudProvider(ctx, op.GetClient(), types)
	decorated := overlay.Decorate(plain, op.GetClient(), op.InstanceTypeStore)
	repairs, err := health.NewRepairPolicyMatcher(ctx, decorated)
	fail(err)
	cluster := state.NewCluster(op.Clock, op.GetClient(), decorated, state.WithRepairPolicyMatcher(repairs))
	all := controllers.NewControllers(ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, decorated, plain,
		cluster, op.InstanceTypeStore, op.PredictionStore)
	op.WithControllers(ctx, all...).Start(ctx)
}

// on is the port of ":port" on one address only.
func on(address net.IP, everywhere string) string {
	return net.JoinHostPort(address.String(), strings.TrimPrefix(everywhere, ":"))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
