package codec

import "google.golang.org/protobuf/encoding/protowire"

// Hello is the member of every stream's messages that comes first.
const Hello protowire.Number = 1

// The members of GatewayMessage.
const (
	GatewaySubmit      protowire.Number = 2
	GatewayCancel      protowire.Number = 3
	GatewayCacheUse    protowire.Number = 6
	GatewayEnsembleEnd protowire.Number = 7
)

// The members of SchedulerMessage.
const (
	SchedulerRefused  protowire.Number = 3
	SchedulerResponse protowire.Number = 4
	SchedulerCredit   protowire.Number = 5
	SchedulerPlaced   protowire.Number = 6
	SchedulerDrain    protowire.Number = 7
)

// The members of WorkerMessage.
const (
	WorkerGrant         protowire.Number = 2
	WorkerInstanceFree  protowire.Number = 3
	WorkerRetire        protowire.Number = 4
	WorkerDrain         protowire.Number = 5
	WorkerBatchReturned protowire.Number = 6
	WorkerUnitDone      protowire.Number = 7
	WorkerLeave         protowire.Number = 8
)

// The members of WorkMessage.
const (
	WorkBatch   protowire.Number = 2
	WorkCancel  protowire.Number = 3
	WorkRetired protowire.Number = 4
	WorkLeft    protowire.Number = 5
)
