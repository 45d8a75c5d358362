/* verbs.c: the table of all commands, in the order in which the overview shows them. */
#include "cli.h"

const cli_verb cli_verbs[] = {
    {"up", "", "start the platform on this machine",
     "Starts kubeml-controller in the background and waits until it answers. It listens on\n"
     "127.0.0.1:10100 and keeps its files in KUBEML_HOME (~/.kubeml). Its log there is controller.log.\n"
     "If the log has 16 MiB or more, the next `up` renames it to controller.log.old and begins a new\n"
     "one.",
     cmd_up},
    {"down", "", "stop the platform on this machine",
     "Stops the controller and every process that it started. Running jobs continue from their last\n"
     "checkpoint at the next `kubeml up`. Data sets, models and histories stay.",
     cmd_down},
    {"status", "", "what runs here", NULL, cmd_status},
    {"dataset create", "NAME", "upload a data set",
     "Files may be npy, npz, IDX (also .gz) or CIFAR binary; the content decides the format.\n"
     "CIFAR-10's batches contain their labels: give --traindata several times, without --trainlabels.\n"
     "An npz with x_train, y_train, x_test and y_test is a whole data set: give --traindata alone.\n\n"
     "  kubeml dataset create --name mnist --traindata train-images-idx3-ubyte.gz \\\n"
     "      --trainlabels train-labels-idx1-ubyte.gz --testdata t10k-images-idx3-ubyte.gz \\\n"
     "      --testlabels t10k-labels-idx1-ubyte.gz",
     cmd_dataset_create},
    {"dataset list", "", "list the data sets", NULL, cmd_dataset_list},
    {"dataset get", "NAME", "show one data set", NULL, cmd_dataset_get},
    {"dataset delete", "NAME", "delete a data set", NULL, cmd_dataset_delete},
    {"function create", "NAME", "upload the code that trains a model",
     "The code is compiled once, in a sandbox. The command prints the compiler's errors and their lines.\n\n"
     "  kubeml function create --name lenet --code lenet.c\n"
     "  kubeml function create --name r20 --model resnet20\n"
     "  kubeml function create --name r34 --model resnet34,flip=on,crop=4",
     cmd_function_create},
    {"function update", "NAME", "upload a new version of a function",
     "Running jobs keep the version that they began with.", cmd_function_update},
    {"function list", "", "list the functions", NULL, cmd_function_list},
    {"function get", "NAME", "show one function and its versions", NULL, cmd_function_get},
    {"function delete", "NAME", "delete a function", NULL, cmd_function_delete},
    {"function logs", "NAME", "the log of the newest job that ran a function", NULL,
     cmd_function_logs},
    {"train", "", "train a function on a data set",
     "Prints the job's id alone, for scripts. With --watch it follows the job instead; ^C then ends the\n"
     "command and not the job.\n\n"
     "  kubeml train -f lenet -d mnist -e 5 -b 32 --lr 0.01 --parallelism 4 --static --K -1",
     cmd_train},
    {"task list", "", "list the jobs that wait or run", NULL, cmd_task_list},
    {"task get", "ID", "show one job", NULL, cmd_task_get},
    {"task stop", "ID", "stop a job; what was merged stays", NULL, cmd_task_stop},
    {"task suspend", "ID", "stop a job at its next merge, to be resumed there", NULL,
     cmd_task_suspend},
    {"task resume", "ID", "resume a suspended, stopped or failed job from where it stands", NULL,
     cmd_task_resume},
    {"task wait", "ID", "wait for a job's end",
     "Exit status 0: the job succeeded. 1: it did not, or the platform said nothing at all for 3\n"
     "minutes; then the job may still run.",
     cmd_task_wait},
    {"task prune", "", "stop every job that waits or runs, of all users",
     "Asks first. (The first KubeML's prune removed what ended jobs had left behind. Here they leave\n"
     "only histories and models, which `kubeml history prune` deletes.)\n\n"
     "  kubeml task prune --user anna --yes",
     cmd_task_prune},
    {"history list", "", "list the histories of all jobs", NULL, cmd_history_list},
    {"history get", "ID", "losses, accuracy and times of a job, epoch by epoch", NULL,
     cmd_history_get},
    {"history delete", "ID", "delete a job's history and model", NULL, cmd_history_delete},
    {"history prune", "",
     "delete all jobs that have ended, of all users, with histories and models",
     "Asks first.\n\n  kubeml history prune --user anna --yes", cmd_history_prune},
    {"top", "", "what running functions use: processor, memory, GPU",
     "CPU % is a share of one core. MEMORY is the most that was resident. GPU %, GPU MEMORY and WATTS\n"
     "are those of the whole GPU, with all that runs on it. -o wide adds the function's own part: OWN,\n"
     "its memory there, and OWN %, its share of the GPU's time, if the driver reports them. --watch\n"
     "prints again every two seconds.",
     cmd_top},
    {"logs", "ID", "what a job's processes said",
     "With --follow the command continues if a lost controller is back within 3 minutes. It continues\n"
     "where it was and prints no line twice.",
     cmd_logs},
    {"explain", "ID|FUNCTION", "why a job waits or went wrong, or a function did not compile",
     "Of a function it prints the version in use, and the compiler's lines if the last upload did not\n"
     "compile.\n\n"
     "  kubeml explain 0a1b2c3d4e5f\n"
     "  kubeml explain lenet",
     cmd_explain},
    {"infer", "ID", "classify with a trained model",
     "The data file is npy, IDX (also .gz) or JSON: one sample or an array of samples, each (C, H, W).\n"
     "The numbers are as in the uploaded file: 0 to 255 for a uint8 data set. - is standard input. The\n"
     "command sends an array in as many requests as it needs, and JSON in one.\n\n"
     "  kubeml infer ID --datafile t10k-images-idx3-ubyte.gz",
     cmd_infer},
    {"model export", "ID", "download a trained model as safetensors or npz", NULL,
     cmd_model_export},
    {"run", "FILE.c", "train in this process, without the platform",
     "Takes the same file that would be uploaded. All options: kubeml run --help.", cmd_run},
    {"zoo list", "", "the models that need no code",
     "They train with SGD, momentum 0.9 and weight decay 1e-4, on samples standardised with the data\n"
     "set's mean and deviation. Options may follow a model's name, with commas between:\n\n"
     "  stem=cifar|imagenet|auto         first layers for small or large images (auto: by the data set)\n"
     "  flip=on|off                      swaps left and right with probability 1/2, in training (off)\n"
     "  crop=PIXELS                      adds zeros on each side, cuts out at random, in training (0)\n"
     "  scale=standardise|min_max|none   min_max: from 0 to 1 by the data set; none: x/255 of bytes\n"
     "                                   (standardise)\n\n"
     "  kubeml function create --name r34 --model resnet34,flip=on,crop=4",
     cmd_zoo_list},
    {"completion", "[bash]", "print the shell completion",
     "Completes commands, options, their words, and the names and ids of what the platform has, if the\n"
     "platform answers at once.\n\n"
     "  source <(kubeml completion bash)",
     cmd_completion},
    {"version", "", "this program's version, and the platform's", NULL, cmd_version},
    {NULL, NULL, NULL, NULL, NULL},
};
