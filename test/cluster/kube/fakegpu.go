package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// gpuPlugin is a device plugin whose GPUs are names only. With replicas, device GPU::2 is the third share of
// GPU, as NVIDIA's plugin names them under time-slicing; containers are told the GPU's name, and have
// library, where there is one, in the place of NVML. It mounts no device, sets no node label, and does not
// register again with a restarted kubelet.
type gpuPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices []*pluginapi.Device
	mounts  []*pluginapi.Mount
}

func newGPUPlugin(host string, gpus, replicas int) *gpuPlugin {
	p := &gpuPlugin{}
	for g := range gpus {
		for r := range replicas {
			id := fmt.Sprintf("GPU-%s-%d", host, g)
			if replicas > 1 {
				id += fmt.Sprintf("::%d", r)
			}
			p.devices = append(p.devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
		}
	}
	return p
}

func (p *gpuPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *gpuPlugin) ListAndWatch(_ *pluginapi.Empty, s pluginapi.DevicePlugin_ListAndWatchServer) error {
	if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// visible names each GPU of the shares once.
func visible(shares []string) string {
	var gpus []string
	seen := map[string]bool{}
	for _, share := range shares {
		gpu, _, _ := strings.Cut(share, "::")
		if !seen[gpu] {
			seen[gpu] = true
			gpus = append(gpus, gpu)
		}
	}
	return strings.Join(gpus, ",")
}

func (p *gpuPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	var answer pluginapi.AllocateResponse
	for _, c := range r.ContainerRequests {
		log.Printf("allocate %v", c.DevicesIds)
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:   map[string]string{"NVIDIA_VISIBLE_DEVICES": visible(c.DevicesIds)},
			Mounts: p.mounts,
		})
	}
	return &answer, nil
}

func register(socket, resource string) error {
	conn, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(socket), ResourceName: resource,
	})
	return err
}

func fakeGPU(args []string) {
	flags := flag.NewFlagSet("fake-gpu", flag.ExitOnError)
	resource := flags.String("resource", "nvidia.com/gpu", "the extended resource")
	gpus := flags.Int("gpus", 1, "how many GPUs")
	replicas := flags.Int("replicas", 1, "how many containers share each GPU")
	library := flags.String("library", "", "what containers have in NVML's place, where it is there")
	flags.Parse(args)

	host, _ := os.Hostname()
	p := newGPUPlugin(host, *gpus, *replicas)
	if _, err := os.Stat(*library); err == nil {
		const place = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
		p.mounts = []*pluginapi.Mount{{HostPath: *library, ContainerPath: place, ReadOnly: true}}
	}
	socket := filepath.Join(pluginapi.DevicePluginPath, "fake-gpu.sock")
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go func() { log.Fatal(server.Serve(l)) }()
	if err := register(socket, *resource); err != nil {
		log.Fatal(err)
	}
	log.Printf("registered %d x %s", len(p.devices), *resource)
	select {}
}
