/* verbs.c: the table of all commands, in the order in which the overview shows them. */
#include "cli.h"

const cli_verb cli_verbs[] = {
    {"up", "", "start the platform on this machine",
     "Starts kubeml-controller in the background and waits until it answers. It listens on\n"
     "127.0.0.1:10100 unless told otherwise, and keeps its files in KUBEML_HOME (~/.kubeml). Its log is\n"
     "controller.log there; from 16 MiB on the next `up` begins a new one, and keeps that as\n"
     "controller.log.old.",
     cmd_up},
    {"down", "", "stop the platform on this machine",
     "Ends the controller and every process it started. Running jobs go on from their last\n"
     "checkpoint at the next `kubeml up`; data sets, models and histories stay.",
     cmd_down},
    {"status", "", "what runs here", NULL, cmd_status},
    {"dataset create", "NAME", "upload a data set",
     "Files may be npy, npz, IDX (also .gz) or CIFAR binary; the format is recognised by content.\n"
     "CIFAR-10's batches hold their labels: give --traindata several times and leave --trainlabels out.\n"
     "An npz with x_train, y_train, x_test and y_test is a whole data set: --traindata alone.\n\n"
     "  kubeml dataset create --name mnist --traindata train-images-idx3-ubyte.gz \\\n"
     "      --trainlabels train-labels-idx1-ubyte.gz --testdata t10k-images-idx3-ubyte.gz \\\n"
     "      --testlabels t10k-labels-idx1-ubyte.gz",
     cmd_dataset_create},
    {"dataset list", "", "list the data sets", NULL, cmd_dataset_list},
    {"dataset get", "NAME", "show one data set", NULL, cmd_dataset_get},
    {"dataset delete", "NAME", "delete a data set", NULL, cmd_dataset_delete},
    {"function create", "NAME", "upload the code that trains a model",
     "The code is compiled once, in a sandbox; the compiler's errors come back with their lines.\n\n"
     "  kubeml function create --name lenet --code lenet.c\n"
     "  kubeml function create --name r20 --model resnet20\n"
     "  kubeml function create --name r34 --model resnet34,flip=on,crop=4",
     cmd_function_create},
    {"function update", "NAME", "upload a new version of a function",
     "Jobs that run keep the version they began with.", cmd_function_update},
    {"function list", "", "list the functions", NULL, cmd_function_list},
    {"function get", "NAME", "show one function and its versions", NULL, cmd_function_get},
    {"function delete", "NAME", "delete a function", NULL, cmd_function_delete},
    {"function logs", "NAME", "the log of the newest job that ran a function", NULL,
     cmd_function_logs},
    {"train", "", "train a function on a data set",
     "Prints the job's id alone, so that scripts can take it; --watch follows it instead, and ^C ends\n"
     "that, not the job.\n\n"
     "  kubeml train -f lenet -d mnist -e 5 -b 32 --lr 0.01 --parallelism 4 --static --K -1",
     cmd_train},
    {"task list", "", "list the jobs that wait or run", NULL, cmd_task_list},
    {"task get", "ID", "show one job", NULL, cmd_task_get},
    {"task stop", "ID", "stop a job; what was merged stays", NULL, cmd_task_stop},
    {"task suspend", "ID", "stop a job at its next merge, to be resumed there", NULL,
     cmd_task_suspend},
    {"task resume", "ID", "go on with a suspended, stopped or failed job from where it stands",
     NULL, cmd_task_resume},
    {"task wait", "ID", "wait for a job's end",
     "Exit status 0 when it succeeded, 1 otherwise; also when the platform says nothing at all for 3\n"
     "minutes, where the job may run on.",
     cmd_task_wait},
    {"task prune", "", "stop every job that waits or runs, of all users",
     "It asks first. (The first KubeML's prune removed what jobs that had ended left behind: here they\n"
     "leave nothing but their histories and models, which `kubeml history prune` deletes.)\n\n"
     "  kubeml task prune --user anna --yes",
     cmd_task_prune},
    {"history list", "", "list the histories of all jobs", NULL, cmd_history_list},
    {"history get", "ID", "losses, accuracy and times of a job, epoch by epoch", NULL,
     cmd_history_get},
    {"history delete", "ID", "delete a job's history and model", NULL, cmd_history_delete},
    {"history prune", "",
     "delete all jobs that have ended, of all users, with histories and models",
     "It asks first.\n\n  kubeml history prune --user anna --yes", cmd_history_prune},
    {"top", "", "what running functions use: processor, memory, GPU",
     "CPU % is of one core; MEMORY the most that was resident; GPU %, GPU MEMORY and WATTS are those of the whole GPU, with\n"
     "all that run on it. -o wide has the function's own part too: OWN, the memory that it holds there, and OWN %, of the\n"
     "GPU's time, where the driver tells it. --watch prints again every two seconds.",
     cmd_top},
    {"logs", "ID", "what a job's processes said",
     "With --follow it goes on when a controller that went away is back within 3 minutes: where it\n"
     "was, without a line twice.",
     cmd_logs},
    {"explain", "ID|FUNCTION", "why a job waits or went wrong, or a function did not compile",
     "Of a function: the version in use, and why the last upload did not compile, with its lines.\n\n"
     "  kubeml explain 0a1b2c3d4e5f\n"
     "  kubeml explain lenet",
     cmd_explain},
    {"infer", "ID", "classify with a trained model",
     "The data file is npy, IDX (also .gz) or JSON, one sample or an array of them, each (C, H, W), with\n"
     "numbers as in the file that was uploaded: of a uint8 data set 0 to 255. - is standard input. An\n"
     "array goes in as many requests as it takes, JSON in one.\n\n"
     "  kubeml infer ID --datafile t10k-images-idx3-ubyte.gz",
     cmd_infer},
    {"model export", "ID", "download a trained model as safetensors or npz", NULL,
     cmd_model_export},
    {"run", "FILE.c", "train in this process, without the platform",
     "The same file that would be uploaded. All options: kubeml run --help.", cmd_run},
    {"zoo list", "", "the models that need no code",
     "They train with SGD, momentum 0.9 and weight decay 1e-4, on samples standardised with the data\n"
     "set's own mean and deviation. A model's name may be followed by options, with commas between:\n\n"
     "  stem=cifar|imagenet|auto         its beginning, for small or large images (auto: by the data set)\n"
     "  flip=on|off                      left and right swapped with probability 1/2, in training (off)\n"
     "  crop=PIXELS                      so many zeros on each side, then cut out at random, in training (0)\n"
     "  scale=standardise|min_max|none   min_max: from 0 to 1 by the data set's own; none: x/255 of bytes\n"
     "                                   (standardise)\n\n"
     "  kubeml function create --name r34 --model resnet34,flip=on,crop=4",
     cmd_zoo_list},
    {"completion", "[bash]", "print the shell completion",
     "It completes commands, options, the words that these may be, and the names and ids of what the\n"
     "platform has, where it answers at once.\n\n"
     "  source <(kubeml completion bash)",
     cmd_completion},
    {"version", "", "this program's version, and the platform's", NULL, cmd_version},
    {NULL, NULL, NULL, NULL, NULL},
};
