// Its own guide's settings for many small jobs: they are fetched and completed in batches.
import { fileURLToPath } from "node:url";

export default {
  worker: {
    taskDirectory: fileURLToPath(new URL("tasks", import.meta.url)),
    concurrentJobs: 8,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    pollInterval: 100,
  },
};
