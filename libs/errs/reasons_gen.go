// Code generated from reasons.tsv by internal/gen. DO NOT EDIT.

package errs

// The reasons, in the order in which they were added.
const (
	// Bug: Nereid met a condition that its authors did not foresee.
	Bug Reason = "bug"
	// ModelNotFound: No model of this name, or no such version of it, is in the repository.
	ModelNotFound Reason = "model_not_found"
	// ModelNotReady: The model version exists but no instance of it can answer now.
	ModelNotReady Reason = "model_not_ready"
	// ModelUnavailable: Statistics or configuration were asked of a model version that is not loaded.
	ModelUnavailable Reason = "model_unavailable"
	// InvalidVersion: The version in the request is not a positive integer.
	InvalidVersion Reason = "invalid_version"
	// ServerNotReady: The server is still starting.
	ServerNotReady Reason = "server_not_ready"
	// Draining: The server is shutting down and takes no new work.
	Draining Reason = "draining"
	// NoWorker: No worker holds an instance of this model version.
	NoWorker Reason = "no_worker"
	// InstanceCrashed: The instance that ran the request died before it answered.
	InstanceCrashed Reason = "instance_crashed"
	// InvalidJSON: The request body is not the JSON that the protocol defines.
	InvalidJSON Reason = "invalid_json"
	// InvalidParameter: A request parameter has the wrong type, value, or a reserved name.
	InvalidParameter Reason = "invalid_parameter"
	// InputMissing: A required input is not in the request.
	InputMissing Reason = "input_missing"
	// InputUnexpected: The request names an input that the model does not have.
	InputUnexpected Reason = "input_unexpected"
	// OutputUnexpected: The request names an output that the model does not have.
	OutputUnexpected Reason = "output_unexpected"
	// TensorDuplicate: An input or output is named twice.
	TensorDuplicate Reason = "tensor_duplicate"
	// DatatypeMismatch: An input's datatype is unknown or not the model's.
	DatatypeMismatch Reason = "datatype_mismatch"
	// ShapeMismatch: An input's shape does not fit the model.
	ShapeMismatch Reason = "shape_mismatch"
	// BatchSizeExceeded: The request holds more rows than max_batch_size.
	BatchSizeExceeded Reason = "batch_size_exceeded"
	// ByteSizeMismatch: An input's bytes do not fill its shape exactly.
	ByteSizeMismatch Reason = "byte_size_mismatch"
	// TensorDataInvalid: An input's data is missing, given twice, or cannot be read as its datatype.
	TensorDataInvalid Reason = "tensor_data_invalid"
	// TensorDataCount: A JSON input holds more or fewer elements than its shape.
	TensorDataCount Reason = "tensor_data_count"
	// HeaderLengthInvalid: Inference-Header-Content-Length is not a number within the body.
	HeaderLengthInvalid Reason = "header_length_invalid"
	// InputTooLarge: A body or tensor exceeds the configured input limit.
	InputTooLarge Reason = "input_too_large"
	// BodyTooLarge: The body exceeds a limit of the server's own.
	BodyTooLarge Reason = "body_too_large"
	// EncodingUnsupported: The Content-Encoding is none that this endpoint reads.
	EncodingUnsupported Reason = "encoding_unsupported"
	// Unsupported: The request asks for something this server or endpoint does not do.
	Unsupported Reason = "unsupported"
	// PathNotFound: No endpoint has this path.
	PathNotFound Reason = "path_not_found"
	// MethodNotAllowed: The endpoint exists, for another HTTP method.
	MethodNotAllowed Reason = "method_not_allowed"
	// ResponseCount: A model gave no response or several where one was needed.
	ResponseCount Reason = "response_count"
	// ExecutionFailed: The model failed while it ran.
	ExecutionFailed Reason = "execution_failed"
	// Canceled: The client cancelled or went away.
	Canceled Reason = "cancelled"
	// MaxQueueSize: The model's own queue policy refused the request: the queue is full.
	MaxQueueSize Reason = "max_queue_size"
	// QueueTimeout: The model's own queue policy timed the request out before it ran.
	QueueTimeout Reason = "queue_timeout"
	// QueueFull: The server's queue bound, in requests or bytes, is reached.
	QueueFull Reason = "queue_full"
	// DeadlineUnmeetable: At admission the request could not be expected to finish by its deadline.
	DeadlineUnmeetable Reason = "deadline_unmeetable"
	// DeadlineQueue: The deadline passed, or could no longer be met, while the request waited.
	DeadlineQueue Reason = "deadline_queue"
	// DeadlineCompute: The deadline passed while the request ran.
	DeadlineCompute Reason = "deadline_compute"
	// Shed: The request's cost class and tenant are below the present admission level.
	Shed Reason = "shed"
	// QuotaExceeded: The tenant's quota cannot cover the request's cost.
	QuotaExceeded Reason = "quota_exceeded"
	// TenantConcurrency: The tenant has as many requests in flight as it may.
	TenantConcurrency Reason = "tenant_concurrency"
	// TokenMissing: The request carries no credentials.
	TokenMissing Reason = "token_missing"
	// TokenInvalid: The credentials are unknown, expired or malformed.
	TokenInvalid Reason = "token_invalid"
	// TenantForbidden: The tenant may not use this model or API.
	TenantForbidden Reason = "tenant_forbidden"
	// APIRestricted: The operator has restricted this API to callers with a key.
	APIRestricted Reason = "api_restricted"
	// AlreadyExists: A thing of this name exists already.
	AlreadyExists Reason = "already_exists"
	// RegionNotFound: No shared-memory region of this name is registered.
	RegionNotFound Reason = "region_not_found"
	// RegionRange: The range lies outside the shared-memory region.
	RegionRange Reason = "region_range"
	// ConfigInvalid: A model configuration or server setting is not valid.
	ConfigInvalid Reason = "config_invalid"
	// LoadFailed: The model could not be loaded.
	LoadFailed Reason = "load_failed"
	// LoadUnknownModel: The model to be loaded is in no repository, or what was given to load it with cannot be read.
	LoadUnknownModel Reason = "load_unknown_model"
	// ModelControlDisabled: Models are not under explicit control.
	ModelControlDisabled Reason = "model_control_disabled"
	// LibraryMissing: A runtime library that a backend needs cannot be opened.
	LibraryMissing Reason = "library_missing"
	// StateUnavailable: The control plane's store cannot be reached.
	StateUnavailable Reason = "state_unavailable"
	// ResponseTooLarge: The response exceeds what the protocol can carry in one message.
	ResponseTooLarge Reason = "response_too_large"
	// LoadConflict: 64 loads and unloads of the model wait already for the one that is under way.
	LoadConflict Reason = "load_conflict"
	// BodyStalled: The body of the request came too slowly.
	BodyStalled Reason = "body_stalled"
	// ModelAmbiguous: With model namespacing, none or several of the loaded models have the name.
	ModelAmbiguous Reason = "model_ambiguous"
	// MemoryFull: The requests in flight hold as many bytes as they may.
	MemoryFull Reason = "memory_full"
	// FilesChanged: A model version's files are not those that the registry read.
	FilesChanged Reason = "files_changed"
	// StoreDenied: The object store refuses to show a model repository with the credentials that there are.
	StoreDenied Reason = "store_denied"
	// StoreNotFound: The object store has no such bucket or object.
	StoreNotFound Reason = "store_not_found"
	// StoreUnreachable: The object store does not answer, or answers that it failed.
	StoreUnreachable Reason = "store_unreachable"
	// StoreTruncated: The object store broke off in the middle of a file.
	StoreTruncated Reason = "store_truncated"
	// StoreThrottled: The object store asks for fewer requests.
	StoreThrottled Reason = "store_throttled"
	// CacheFull: The files of a model do not fit into the worker's cache.
	CacheFull Reason = "cache_full"
	// TransferFailed: The bytes of a tensor could not be brought from one service to another.
	TransferFailed Reason = "transfer_failed"
	// NoScheduler: No scheduler holds the pool of this model.
	NoScheduler Reason = "no_scheduler"
	// SequenceLost: The request's sequence cannot go on: one of its requests was not run, or its state went with its worker or scheduler.
	SequenceLost Reason = "sequence_lost"
	// SchedulerDeposed: The scheduler does not hold its pool any more. Gateways submit the request to the next one, and clients do not see this.
	SchedulerDeposed Reason = "scheduler_deposed"
	// RequestUnderway: A worker runs the request or has run it. Its gateway goes on waiting for the answer, and clients do not see this.
	RequestUnderway Reason = "request_underway"
	// RequestFinished: A worker has run the request, and its answer is on the way or lost. Its gateway waits for a while, and clients do not see this.
	RequestFinished Reason = "request_finished"
	// PeerMalformed: A service of the cluster sent another what it cannot read or may not say.
	PeerMalformed Reason = "peer_malformed"
	// PeerProtocol: Two services of the cluster speak no protocol in common.
	PeerProtocol Reason = "peer_protocol"
	// PeerUnreachable: A service of the cluster cannot be reached, has gone silent, or does not serve now.
	PeerUnreachable Reason = "peer_unreachable"
	// MemoryPressure: The devices or workers that run the model have no memory for what waits already.
	MemoryPressure Reason = "memory_pressure"
	// RoleForbidden: The certificate of the calling service does not allow the call.
	RoleForbidden Reason = "role_forbidden"
	// CorrelationMissing: The model batches sequences, and the request has no correlation ID.
	CorrelationMissing Reason = "correlation_missing"
	// SequenceNotStarted: No live sequence of the model has the request's correlation ID, and the request does not start one.
	SequenceNotStarted Reason = "sequence_not_started"
	// SequenceTimeout: The sequence waited for a slot for longer than the timeout of one of its requests.
	SequenceTimeout Reason = "sequence_timeout"
	// EncodingInvalid: The body cannot be decompressed.
	EncodingInvalid Reason = "encoding_invalid"
	// ResponseStalled: The client took too little of a response for too long.
	ResponseStalled Reason = "response_stalled"
	// ResponsesUnread: The model gave more responses than may wait for a client that does not read, without waiting for it.
	ResponsesUnread Reason = "responses_unread"
	// CallDeadlock: A model calls another, or itself, and every instance that could run the call is held by a batch that waits for it.
	CallDeadlock Reason = "call_deadlock"
	// StubUnhealthy: The process of a Python model ended, or was ended, while it had the request.
	StubUnhealthy Reason = "stub_unhealthy"
	// ModelUnknown: The model failed with an error of the kind UNKNOWN.
	ModelUnknown Reason = "model_unknown"
	// ModelRefused: The model refused the request as invalid.
	ModelRefused Reason = "model_refused"
	// ModelFoundNot: The model did not find what the request names.
	ModelFoundNot Reason = "model_found_not"
	// ModelBusy: The model says that it cannot serve the request now.
	ModelBusy Reason = "model_busy"
	// ModelUnsupported: The model does not support what the request asks for.
	ModelUnsupported Reason = "model_unsupported"
	// InstanceAway: The instance is away, since its process is started again. The scheduler gives the request to another instance, or to this one when it is back; clients do not see this.
	InstanceAway Reason = "instance_away"
	// RetryBudget: The tenant sends more retries than its share of other requests.
	RetryBudget Reason = "retry_budget"
	// PolicyInvalid: A policy has findings, or its own tests fail.
	PolicyInvalid Reason = "policy_invalid"
	// RequestUnknown: No recent request of a gateway has this id.
	RequestUnknown Reason = "request_unknown"
	// DeviceMemory: The device has no memory for the request, even by itself.
	DeviceMemory Reason = "device_memory"
	// DeviceFailed: The device that ran the request has failed; its worker begins anew.
	DeviceFailed Reason = "device_failed"
	// TenantMemory: The requests of the tenant in flight hold as many bytes as they may.
	TenantMemory Reason = "tenant_memory"
	// ConnectionFlooded: The client sent too many HTTP/2 frames that serve no call; its connection was closed.
	ConnectionFlooded Reason = "connection_flooded"
	// PolicyMissing: A policy was published, and the gateway has none that is valid.
	PolicyMissing Reason = "policy_missing"
	// RegionUnavailable: The file of a shared-memory region cannot be opened.
	RegionUnavailable Reason = "region_unavailable"
	// RegionChanged: The file of a shared-memory region became shorter, or the memory of a region cannot be read or written.
	RegionChanged Reason = "region_changed"
	// RegionTooSmall: An output does not fit into the part of the shared-memory region that the request gives it.
	RegionTooSmall Reason = "region_too_small"
	// RegionQuota: As many shared-memory regions, or bytes in them, are registered as may be.
	RegionQuota Reason = "region_quota"
	// DeadlineTooShort: The model takes longer than the deadline gives, also on an idle server.
	DeadlineTooShort Reason = "deadline_too_short"
	// RecordingBusy: As many recordings run at the gateway as may run at a time.
	RecordingBusy Reason = "recording_busy"
	// RegionLost: The worker of the GPU that has a region of CUDA shared memory mapped cannot be reached.
	RegionLost Reason = "region_lost"
)

type row struct {
	http    uint16
	grpc    uint8
	retry   bool
	summary string
}

func lookup(r Reason) int {
	switch r {
	case Bug:
		return 0
	case ModelNotFound:
		return 1
	case ModelNotReady:
		return 2
	case ModelUnavailable:
		return 3
	case InvalidVersion:
		return 4
	case ServerNotReady:
		return 5
	case Draining:
		return 6
	case NoWorker:
		return 7
	case InstanceCrashed:
		return 8
	case InvalidJSON:
		return 9
	case InvalidParameter:
		return 10
	case InputMissing:
		return 11
	case InputUnexpected:
		return 12
	case OutputUnexpected:
		return 13
	case TensorDuplicate:
		return 14
	case DatatypeMismatch:
		return 15
	case ShapeMismatch:
		return 16
	case BatchSizeExceeded:
		return 17
	case ByteSizeMismatch:
		return 18
	case TensorDataInvalid:
		return 19
	case TensorDataCount:
		return 20
	case HeaderLengthInvalid:
		return 21
	case InputTooLarge:
		return 22
	case BodyTooLarge:
		return 23
	case EncodingUnsupported:
		return 24
	case Unsupported:
		return 25
	case PathNotFound:
		return 26
	case MethodNotAllowed:
		return 27
	case ResponseCount:
		return 28
	case ExecutionFailed:
		return 29
	case Canceled:
		return 30
	case MaxQueueSize:
		return 31
	case QueueTimeout:
		return 32
	case QueueFull:
		return 33
	case DeadlineUnmeetable:
		return 34
	case DeadlineQueue:
		return 35
	case DeadlineCompute:
		return 36
	case Shed:
		return 37
	case QuotaExceeded:
		return 38
	case TenantConcurrency:
		return 39
	case TokenMissing:
		return 40
	case TokenInvalid:
		return 41
	case TenantForbidden:
		return 42
	case APIRestricted:
		return 43
	case AlreadyExists:
		return 44
	case RegionNotFound:
		return 45
	case RegionRange:
		return 46
	case ConfigInvalid:
		return 47
	case LoadFailed:
		return 48
	case LoadUnknownModel:
		return 49
	case ModelControlDisabled:
		return 50
	case LibraryMissing:
		return 51
	case StateUnavailable:
		return 52
	case ResponseTooLarge:
		return 53
	case LoadConflict:
		return 54
	case BodyStalled:
		return 55
	case ModelAmbiguous:
		return 56
	case MemoryFull:
		return 57
	case FilesChanged:
		return 58
	case StoreDenied:
		return 59
	case StoreNotFound:
		return 60
	case StoreUnreachable:
		return 61
	case StoreTruncated:
		return 62
	case StoreThrottled:
		return 63
	case CacheFull:
		return 64
	case TransferFailed:
		return 65
	case NoScheduler:
		return 66
	case SequenceLost:
		return 67
	case SchedulerDeposed:
		return 68
	case RequestUnderway:
		return 69
	case RequestFinished:
		return 70
	case PeerMalformed:
		return 71
	case PeerProtocol:
		return 72
	case PeerUnreachable:
		return 73
	case MemoryPressure:
		return 74
	case RoleForbidden:
		return 75
	case CorrelationMissing:
		return 76
	case SequenceNotStarted:
		return 77
	case SequenceTimeout:
		return 78
	case EncodingInvalid:
		return 79
	case ResponseStalled:
		return 80
	case ResponsesUnread:
		return 81
	case CallDeadlock:
		return 82
	case StubUnhealthy:
		return 83
	case ModelUnknown:
		return 84
	case ModelRefused:
		return 85
	case ModelFoundNot:
		return 86
	case ModelBusy:
		return 87
	case ModelUnsupported:
		return 88
	case InstanceAway:
		return 89
	case RetryBudget:
		return 90
	case PolicyInvalid:
		return 91
	case RequestUnknown:
		return 92
	case DeviceMemory:
		return 93
	case DeviceFailed:
		return 94
	case TenantMemory:
		return 95
	case ConnectionFlooded:
		return 96
	case PolicyMissing:
		return 97
	case RegionUnavailable:
		return 98
	case RegionChanged:
		return 99
	case RegionTooSmall:
		return 100
	case RegionQuota:
		return 101
	case DeadlineTooShort:
		return 102
	case RecordingBusy:
		return 103
	case RegionLost:
		return 104
	}
	return -1
}

func rowAt(i int) row {
	switch i {
	case 1:
		return row{404, 5, false, "No model of this name, or no such version of it, is in the repository."}
	case 2:
		return row{503, 14, true, "The model version exists but no instance of it can answer now."}
	case 3:
		return row{400, 3, false, "Statistics or configuration were asked of a model version that is not loaded."}
	case 4:
		return row{400, 3, false, "The version in the request is not a positive integer."}
	case 5:
		return row{503, 14, true, "The server is still starting."}
	case 6:
		return row{503, 14, true, "The server is shutting down and takes no new work."}
	case 7:
		return row{503, 14, true, "No worker holds an instance of this model version."}
	case 8:
		return row{503, 14, true, "The instance that ran the request died before it answered."}
	case 9:
		return row{500, 13, false, "The request body is not the JSON that the protocol defines."}
	case 10:
		return row{400, 3, false, "A request parameter has the wrong type, value, or a reserved name."}
	case 11:
		return row{400, 3, false, "A required input is not in the request."}
	case 12:
		return row{400, 3, false, "The request names an input that the model does not have."}
	case 13:
		return row{400, 3, false, "The request names an output that the model does not have."}
	case 14:
		return row{400, 3, false, "An input or output is named twice."}
	case 15:
		return row{400, 3, false, "An input's datatype is unknown or not the model's."}
	case 16:
		return row{400, 3, false, "An input's shape does not fit the model."}
	case 17:
		return row{400, 3, false, "The request holds more rows than max_batch_size."}
	case 18:
		return row{400, 3, false, "An input's bytes do not fill its shape exactly."}
	case 19:
		return row{400, 3, false, "An input's data is missing, given twice, or cannot be read as its datatype."}
	case 20:
		return row{500, 13, false, "A JSON input holds more or fewer elements than its shape."}
	case 21:
		return row{400, 3, false, "Inference-Header-Content-Length is not a number within the body."}
	case 22:
		return row{400, 3, false, "A body or tensor exceeds the configured input limit."}
	case 23:
		return row{413, 8, false, "The body exceeds a limit of the server's own."}
	case 24:
		return row{501, 12, false, "The Content-Encoding is none that this endpoint reads."}
	case 25:
		return row{501, 12, false, "The request asks for something this server or endpoint does not do."}
	case 26:
		return row{404, 12, false, "No endpoint has this path."}
	case 27:
		return row{405, 12, false, "The endpoint exists, for another HTTP method."}
	case 28:
		return row{500, 13, false, "A model gave no response or several where one was needed."}
	case 29:
		return row{500, 13, false, "The model failed while it ran."}
	case 30:
		return row{400, 1, false, "The client cancelled or went away."}
	case 31:
		return row{503, 14, true, "The model's own queue policy refused the request: the queue is full."}
	case 32:
		return row{503, 14, true, "The model's own queue policy timed the request out before it ran."}
	case 33:
		return row{429, 8, true, "The server's queue bound, in requests or bytes, is reached."}
	case 34:
		return row{429, 8, true, "At admission the request could not be expected to finish by its deadline."}
	case 35:
		return row{504, 4, false, "The deadline passed, or could no longer be met, while the request waited."}
	case 36:
		return row{504, 4, false, "The deadline passed while the request ran."}
	case 37:
		return row{429, 8, true, "The request's cost class and tenant are below the present admission level."}
	case 38:
		return row{429, 8, true, "The tenant's quota cannot cover the request's cost."}
	case 39:
		return row{429, 8, true, "The tenant has as many requests in flight as it may."}
	case 40:
		return row{401, 16, false, "The request carries no credentials."}
	case 41:
		return row{401, 16, false, "The credentials are unknown, expired or malformed."}
	case 42:
		return row{403, 7, false, "The tenant may not use this model or API."}
	case 43:
		return row{403, 14, false, "The operator has restricted this API to callers with a key."}
	case 44:
		return row{400, 6, false, "A thing of this name exists already."}
	case 45:
		return row{404, 5, false, "No shared-memory region of this name is registered."}
	case 46:
		return row{400, 3, false, "The range lies outside the shared-memory region."}
	case 47:
		return row{400, 3, false, "A model configuration or server setting is not valid."}
	case 48:
		return row{400, 3, false, "The model could not be loaded."}
	case 49:
		return row{500, 13, false, "The model to be loaded is in no repository, or what was given to load it with cannot be read."}
	case 50:
		return row{503, 14, false, "Models are not under explicit control."}
	case 51:
		return row{500, 13, false, "A runtime library that a backend needs cannot be opened."}
	case 52:
		return row{503, 14, true, "The control plane's store cannot be reached."}
	case 53:
		return row{400, 3, false, "The response exceeds what the protocol can carry in one message."}
	case 54:
		return row{500, 13, true, "64 loads and unloads of the model wait already for the one that is under way."}
	case 55:
		return row{408, 4, true, "The body of the request came too slowly."}
	case 56:
		return row{400, 3, false, "With model namespacing, none or several of the loaded models have the name."}
	case 57:
		return row{503, 8, true, "The requests in flight hold as many bytes as they may."}
	case 58:
		return row{400, 3, false, "A model version's files are not those that the registry read."}
	case 59:
		return row{400, 3, false, "The object store refuses to show a model repository with the credentials that there are."}
	case 60:
		return row{400, 3, false, "The object store has no such bucket or object."}
	case 61:
		return row{503, 14, true, "The object store does not answer, or answers that it failed."}
	case 62:
		return row{503, 14, true, "The object store broke off in the middle of a file."}
	case 63:
		return row{503, 14, true, "The object store asks for fewer requests."}
	case 64:
		return row{400, 3, false, "The files of a model do not fit into the worker's cache."}
	case 65:
		return row{503, 14, true, "The bytes of a tensor could not be brought from one service to another."}
	case 66:
		return row{503, 14, true, "No scheduler holds the pool of this model."}
	case 67:
		return row{503, 14, false, "The request's sequence cannot go on: one of its requests was not run, or its state went with its worker or scheduler."}
	case 68:
		return row{503, 14, true, "The scheduler does not hold its pool any more. Gateways submit the request to the next one, and clients do not see this."}
	case 69:
		return row{503, 14, true, "A worker runs the request or has run it. Its gateway goes on waiting for the answer, and clients do not see this."}
	case 70:
		return row{503, 14, true, "A worker has run the request, and its answer is on the way or lost. Its gateway waits for a while, and clients do not see this."}
	case 71:
		return row{500, 13, false, "A service of the cluster sent another what it cannot read or may not say."}
	case 72:
		return row{500, 9, false, "Two services of the cluster speak no protocol in common."}
	case 73:
		return row{503, 14, true, "A service of the cluster cannot be reached, has gone silent, or does not serve now."}
	case 74:
		return row{503, 8, true, "The devices or workers that run the model have no memory for what waits already."}
	case 75:
		return row{403, 7, false, "The certificate of the calling service does not allow the call."}
	case 76:
		return row{400, 3, false, "The model batches sequences, and the request has no correlation ID."}
	case 77:
		return row{400, 3, false, "No live sequence of the model has the request's correlation ID, and the request does not start one."}
	case 78:
		return row{503, 14, true, "The sequence waited for a slot for longer than the timeout of one of its requests."}
	case 79:
		return row{400, 3, false, "The body cannot be decompressed."}
	case 80:
		return row{408, 4, false, "The client took too little of a response for too long."}
	case 81:
		return row{503, 8, false, "The model gave more responses than may wait for a client that does not read, without waiting for it."}
	case 82:
		return row{503, 8, false, "A model calls another, or itself, and every instance that could run the call is held by a batch that waits for it."}
	case 83:
		return row{500, 13, true, "The process of a Python model ended, or was ended, while it had the request."}
	case 84:
		return row{400, 2, false, "The model failed with an error of the kind UNKNOWN."}
	case 85:
		return row{400, 3, false, "The model refused the request as invalid."}
	case 86:
		return row{404, 5, false, "The model did not find what the request names."}
	case 87:
		return row{503, 14, true, "The model says that it cannot serve the request now."}
	case 88:
		return row{501, 12, false, "The model does not support what the request asks for."}
	case 89:
		return row{503, 14, true, "The instance is away, since its process is started again. The scheduler gives the request to another instance, or to this one when it is back; clients do not see this."}
	case 90:
		return row{429, 8, true, "The tenant sends more retries than its share of other requests."}
	case 91:
		return row{400, 3, false, "A policy has findings, or its own tests fail."}
	case 92:
		return row{404, 5, false, "No recent request of a gateway has this id."}
	case 93:
		return row{503, 8, true, "The device has no memory for the request, even by itself."}
	case 94:
		return row{503, 14, true, "The device that ran the request has failed; its worker begins anew."}
	case 95:
		return row{429, 8, true, "The requests of the tenant in flight hold as many bytes as they may."}
	case 96:
		return row{429, 8, false, "The client sent too many HTTP/2 frames that serve no call; its connection was closed."}
	case 97:
		return row{503, 14, true, "A policy was published, and the gateway has none that is valid."}
	case 98:
		return row{500, 13, false, "The file of a shared-memory region cannot be opened."}
	case 99:
		return row{400, 3, false, "The file of a shared-memory region became shorter, or the memory of a region cannot be read or written."}
	case 100:
		return row{500, 13, false, "An output does not fit into the part of the shared-memory region that the request gives it."}
	case 101:
		return row{429, 8, false, "As many shared-memory regions, or bytes in them, are registered as may be."}
	case 102:
		return row{504, 4, false, "The model takes longer than the deadline gives, also on an idle server."}
	case 103:
		return row{503, 14, true, "As many recordings run at the gateway as may run at a time."}
	case 104:
		return row{503, 14, true, "The worker of the GPU that has a region of CUDA shared memory mapped cannot be reached."}
	default:
		return row{500, 13, false, "Nereid met a condition that its authors did not foresee."}
	}
}

// Reasons lists every reason in the order of the table.
func Reasons() []Reason {
	return []Reason{
		Bug,
		ModelNotFound,
		ModelNotReady,
		ModelUnavailable,
		InvalidVersion,
		ServerNotReady,
		Draining,
		NoWorker,
		InstanceCrashed,
		InvalidJSON,
		InvalidParameter,
		InputMissing,
		InputUnexpected,
		OutputUnexpected,
		TensorDuplicate,
		DatatypeMismatch,
		ShapeMismatch,
		BatchSizeExceeded,
		ByteSizeMismatch,
		TensorDataInvalid,
		TensorDataCount,
		HeaderLengthInvalid,
		InputTooLarge,
		BodyTooLarge,
		EncodingUnsupported,
		Unsupported,
		PathNotFound,
		MethodNotAllowed,
		ResponseCount,
		ExecutionFailed,
		Canceled,
		MaxQueueSize,
		QueueTimeout,
		QueueFull,
		DeadlineUnmeetable,
		DeadlineQueue,
		DeadlineCompute,
		Shed,
		QuotaExceeded,
		TenantConcurrency,
		TokenMissing,
		TokenInvalid,
		TenantForbidden,
		APIRestricted,
		AlreadyExists,
		RegionNotFound,
		RegionRange,
		ConfigInvalid,
		LoadFailed,
		LoadUnknownModel,
		ModelControlDisabled,
		LibraryMissing,
		StateUnavailable,
		ResponseTooLarge,
		LoadConflict,
		BodyStalled,
		ModelAmbiguous,
		MemoryFull,
		FilesChanged,
		StoreDenied,
		StoreNotFound,
		StoreUnreachable,
		StoreTruncated,
		StoreThrottled,
		CacheFull,
		TransferFailed,
		NoScheduler,
		SequenceLost,
		SchedulerDeposed,
		RequestUnderway,
		RequestFinished,
		PeerMalformed,
		PeerProtocol,
		PeerUnreachable,
		MemoryPressure,
		RoleForbidden,
		CorrelationMissing,
		SequenceNotStarted,
		SequenceTimeout,
		EncodingInvalid,
		ResponseStalled,
		ResponsesUnread,
		CallDeadlock,
		StubUnhealthy,
		ModelUnknown,
		ModelRefused,
		ModelFoundNot,
		ModelBusy,
		ModelUnsupported,
		InstanceAway,
		RetryBudget,
		PolicyInvalid,
		RequestUnknown,
		DeviceMemory,
		DeviceFailed,
		TenantMemory,
		ConnectionFlooded,
		PolicyMissing,
		RegionUnavailable,
		RegionChanged,
		RegionTooSmall,
		RegionQuota,
		DeadlineTooShort,
		RecordingBusy,
		RegionLost,
	}
}
