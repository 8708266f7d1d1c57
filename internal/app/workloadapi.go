package app

import (
	"context"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// WorkloadAPI returns client options for long-running programs. go-spiffe stops for good on Canceled and InvalidArgument, and
// then serves its last SVID until that expires. That suits startup only. After the first successful response, these options
// turn both codes into Unavailable, which go-spiffe retries.
func WorkloadAPI(address string) []workloadapi.ClientOption {
	var answered atomic.Bool
	return []workloadapi.ClientOption{workloadapi.WithAddr(address), workloadapi.WithDialOptions(grpc.WithStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			insist := func(err error) error {
				if code := status.Code(err); ctx.Err() == nil && answered.Load() && (code == codes.Canceled || code == codes.InvalidArgument) {
					return status.Error(codes.Unavailable, err.Error())
				}
				return err
			}
			stream, err := open(ctx, desc, conn, method, opts...)
			if err != nil {
				return nil, insist(err)
			}
			return &insistentStream{stream, &answered, insist}, nil
		}))}
}

type insistentStream struct {
	grpc.ClientStream
	answered *atomic.Bool
	insist   func(error) error
}

// RecvMsg reads one message.
func (s *insistentStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.answered.Store(true)
	}
	return s.insist(err)
}
